package history

import "slices"

// orderExists is the oracle: it tries every order of the transactions, with
// every choice among those of unknown outcome, and replays it on a plain map.
// With strict it wants the order to agree with real time, and with the order in
// which each process ran its transactions.
func orderExists(txns []Txn, strict bool) bool {
	var rest []Txn
	for _, t := range txns {
		if t.Outcome != Aborted {
			rest = append(rest, t)
		}
	}
	return extend(map[Key][]Value{}, rest, strict)
}

func extend(state map[Key][]Value, rest []Txn, strict bool) bool {
	if !slices.ContainsFunc(rest, func(t Txn) bool { return t.Outcome == Committed }) {
		return true
	}
	for i := range rest {
		if strict && slices.ContainsFunc(rest, func(t Txn) bool { return mustPrecede(&t, &rest[i]) }) {
			continue
		}
		after := make(map[Key][]Value, len(state))
		for k, list := range state {
			after[k] = list
		}
		if !replay(after, rest[i].Ops) {
			continue
		}
		if extend(after, slices.Delete(slices.Clone(rest), i, i+1), strict) {
			return true
		}
	}
	return false
}

func mustPrecede(a, b *Txn) bool {
	if a.Outcome != Committed {
		return false
	}
	return a.Complete < b.Invoke-b.Stale ||
		a.ID.Process() == b.ID.Process() && a.ID < b.ID && a.Complete == b.Invoke && b.Stale == 0
}

// replay applies operations to the state and compares their results.
func replay(state map[Key][]Value, ops []Op) bool {
	for _, o := range ops {
		switch o.Kind {
		case OpAppend:
			state[o.Key] = append(slices.Clone(state[o.Key]), o.Value)
		case OpRead:
			if !slices.Equal(state[o.Key], o.List) {
				return false
			}
		case OpDelete:
			if !slices.Equal(state[o.Key], o.List) {
				return false
			}
			delete(state, o.Key)
		case OpScan:
			rows := slices.DeleteFunc(slices.Clone(o.Rows), func(r Row) bool { return len(r.List) == 0 })
			if !slices.EqualFunc(scanState(state, o.Key, o.Hi), rows, func(a, b Row) bool {
				return a.Key == b.Key && slices.Equal(a.List, b.List)
			}) {
				return false
			}
		}
	}
	return true
}

func scanState(state map[Key][]Value, lo, hi Key) []Row {
	var rows []Row
	for k, list := range state {
		if k >= lo && k <= hi && len(list) > 0 {
			rows = append(rows, Row{k, list})
		}
	}
	slices.SortFunc(rows, func(a, b Row) int { return int(int64(a.Key) - int64(b.Key)) })
	return rows
}
