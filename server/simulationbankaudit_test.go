//go:build simulated

package server_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"drtmx/internal/history"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// work is all that one client of a bank does.
func (b *bank) work(ctx context.Context, w *worker) error {
	for n := range w.l.TxnsPerClient {
		var err error
		if w.rnd.Bool(0.2) {
			err = b.auditOnce(ctx, w)
		} else {
			err = b.orderOnce(ctx, w, b.drawOrder(w, n))
		}
		if err != nil || w.over {
			return err
		}
		w.rest()
	}
	return nil
}

// drawAccount draws an account. Half of them are a few that all clients use.
func (b *bank) drawAccount(w *worker) account {
	if w.rnd.Bool(0.5) {
		return account{w.rnd.Intn(3), int64(1 + w.rnd.Intn(2))}
	}
	return account{w.rnd.Intn(3), int64(1 + w.rnd.Intn(int(b.ids)))}
}

func (b *bank) drawOrder(w *worker, n int) *order {
	o := &order{Stamp: uint64(w.number)<<32 | uint64(n)<<2, Amount: int64(w.rnd.Intn(40)), Owner: drawOwner(w.rnd), How: w.rnd.Uint64()}
	switch x := w.rnd.Float64(); {
	case x < 0.5:
		o.Kind = transfer
	case x < 0.53:
		o.Kind = auditing
	default:
		o.Kind = emptying + w.rnd.Intn(auditing-emptying)
	}
	count := 2
	if o.Kind == transfer {
		count += w.rnd.Intn(3)
	}
	for len(o.Accounts) < count {
		if a := b.drawAccount(w); !slices.Contains(o.Accounts, a) {
			o.Accounts = append(o.Accounts, a)
		}
	}
	return o
}

// orderOnce runs one transaction that writes.
func (b *bank) orderOnce(ctx context.Context, w *worker, o *order) error {
	d := &deed{order: *o}
	call := w.rnd.Bool(b.calls) && b.r.w.Part("procedures")
	if !b.r.w.Part(orderNames[o.Kind]) {
		return nil
	}
	outcome, lost, err := w.do(ctx, func(ctx context.Context) (err error) {
		if !call {
			return w.db.Update(ctx, func(t *txn.Txn) (err error) { d.legs, err = b.carryOut(t, o); return err })
		}
		args, err := json.Marshal(o)
		if err != nil {
			return err
		}
		a := b.of[o.Accounts[0].Table]
		res, err := w.db.Call(ctx, server.HomeOf(w.db, a.tab, a.key(o.Accounts[0].ID)), "order", args)
		if err != nil {
			return err
		}
		return json.Unmarshal(res, &d.legs)
	})
	if d.outcome = outcome; w.died == nil { // nobody else could ask
		d.id = w.lost
	}
	if call && (lost || outcome == history.Unknown) {
		d.legs = nil
	}
	b.mu.Lock()
	b.deeds = append(b.deeds, d)
	b.mu.Unlock()
	return err
}

// auditOnce runs one audit.
func (b *bank) auditOnce(ctx context.Context, w *worker) error {
	how := w.rnd.Uint64()
	body := func(t *txn.Txn) error { return b.audit(t, how) }
	kind, a, id := w.rnd.Intn(6), b.drawAccount(w), int64(1)
	if !b.r.w.Part("audits") {
		return nil
	}
	_, _, err := w.do(ctx, func(ctx context.Context) error {
		switch kind {
		case 0:
			return w.db.Snapshot(ctx, body)
		case 1:
			return w.db.Snapshot(ctx, body, txn.Staleness(w.l.Stale+time.Millisecond))
		case 2:
			home := server.HomeOf(w.db, b.of[a.Table].tab, b.of[a.Table].key(id))
			_, err := w.db.Call(ctx, home, "audit", binary.LittleEndian.AppendUint64(nil, how))
			return err
		default:
			return w.db.View(ctx, body)
		}
	})
	return err
}

// errAudit is the error of an audit.
var errAudit = errors.New("audit")

// audit reads all accounts, each table through each index.
func (b *bank) audit(t *txn.Txn, how uint64) error {
	_, err := b.readAll(t, how)
	return err
}

// readAll reads all accounts, and compares what the indexes have.
func (b *bank) readAll(t *txn.Txn, how uint64) (found map[account]line, err error) {
	found = map[account]line{}
	sum := int64(0)
	for i, a := range b.of {
		var ways [3][]line
		for j := range ways {
			way := (j + int(how%3)) % 3 // each comes first in some audits
			if ways[way], err = b.readTable(t, a, way, how>>8); err != nil {
				return nil, err
			}
			slices.SortFunc(ways[way], func(x, y line) int { return cmp.Compare(x.id, y.id) })
		}
		for way, name := range []string{1: "by_owner", 2: "by_balance"} {
			if way > 0 && !slices.Equal(ways[way], ways[0]) {
				return nil, fmt.Errorf("%w: table %s has %v, its index %s %v", errAudit, a.tab.Name(), ways[0], name, ways[way])
			}
		}
		for _, x := range ways[0] {
			found[account{i, x.id}] = x
			sum += x.balance
		}
	}
	if sum != b.total {
		return nil, fmt.Errorf("%w: the total is %d, want %d: %v", errAudit, sum, b.total, found)
	}
	for id := int64(1); id <= b.ids; id++ {
		x, xOpen := found[account{0, id}]
		y, yOpen := found[account{1, id}]
		if xOpen && yOpen && x.balance+y.balance < pairFloor {
			return nil, fmt.Errorf("%w: the pair %d has %d and %d, want %d together", errAudit, id, x.balance, y.balance, pairFloor)
		}
	}
	return found, nil
}

// readTable reads a table in one way: by its primary index, by owner or by balance.
func (b *bank) readTable(t *txn.Txn, a *accountTable, way int, how uint64) (lines []line, err error) {
	ix := []*tables.Index{a.tab.Primary(), a.byOwner, a.byBalance}[way]
	if way == 0 && !ix.Ordered {
		return b.readMany(t, a)
	}
	take := func(row tables.Row) {
		x := line{row.Int(ix.Field("id")), row.Int(ix.Field("balance")), string(row.Text(ix.Field("owner")))}
		lines = append(lines, x)
		if way == 0 && err == nil {
			_, _, err = a.look(row, x.id)
		}
	}
	switch how >> (2 * way) & 3 {
	case 0:
		for e, err := range t.Scan(ix, tables.First, tables.Last) {
			if err != nil {
				return nil, err
			}
			take(e.Row)
		}
	case 1:
		for e, err := range t.ScanReverse(ix, tables.First, tables.Last) {
			if err != nil {
				return nil, err
			}
			take(e.Row)
		}
	default:
		entries, err := t.QueueScan(ix, tables.First, tables.Last, 0).Entries()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			take(e.Row)
		}
	}
	return lines, err
}

// readMany reads the accounts of a table that cannot be scanned.
func (b *bank) readMany(t *txn.Txn, a *accountTable) (lines []line, err error) {
	var keys []tables.Key
	for id := int64(1); id <= b.ids; id++ {
		keys = append(keys, a.key(id))
	}
	rows, err := t.GetMany(a.tab, keys)
	if err != nil {
		return nil, err
	}
	for i, row := range rows {
		if row == nil {
			continue
		}
		x, _, err := a.look(row, int64(i+1))
		if err != nil {
			return nil, err
		}
		lines = append(lines, x)
	}
	return lines, nil
}

func (b *bank) transactions() int { return len(b.deeds) }

// judge compares the accounts with the entries, and those with the ledgers.
func (b *bank) judge(ctx context.Context, x *cluster, out *outcome) error {
	var found map[account]line
	err := insist(func() error {
		return x.DB.View(ctx, func(t *txn.Txn) (err error) { found, err = b.readAll(t, 0); return err })
	})
	if err != nil {
		return fmt.Errorf("in the end: %w", err)
	}
	entries, err := b.readEntries(ctx, x.DB)
	if err != nil {
		return fmt.Errorf("entries: %w", err)
	}
	var errs []error
	left := maps.Clone(entries)
	for _, d := range b.deeds {
		errs = append(errs, b.compare(ctx, x.DB, d, entries))
		for i := range uint64(4) {
			delete(left, d.Stamp+i)
		}
		out.counts[fmt.Sprintf("orders, outcome %d", d.outcome)]++
	}
	for _, stamp := range slices.Sorted(maps.Keys(left)) {
		errs = append(errs, fmt.Errorf("ledger: nobody has made the entry %d of client %d: %v", stamp, stamp>>32, left[stamp]))
	}
	want := maps.Clone(b.first)
	for _, e := range entries {
		want[accountOf(e.From)] -= e.Amount
		want[accountOf(e.To)] += e.Amount
	}
	for i := range b.of {
		for id := int64(1); id <= b.ids; id++ {
			if who := (account{i, id}); want[who] != found[who].balance {
				errs = append(errs, fmt.Errorf("ledger: account %v has %d, its entries say %d", who, found[who].balance, want[who]))
			}
		}
	}
	return errors.Join(errors.Join(errs...), b.closeAll(ctx, x.DB))
}

// readEntries reads all entries, those of one client after the other.
func (b *bank) readEntries(ctx context.Context, db *txn.DB) (map[uint64]leg, error) {
	found := map[uint64]leg{}
	for client := range uint64(b.r.l.Clients) {
		err := insist(func() error {
			return db.View(ctx, func(t *txn.Txn) error {
				for e, err := range t.Scan(b.entry.tab.Primary(), tables.Num(client<<32), tables.Num(client<<32|(1<<32-1))) {
					if err != nil {
						return err
					}
					found[e.Key.Num()] = leg{e.Row.Int(b.entry.from), e.Row.Int(b.entry.to), e.Row.Int(b.entry.amount)}
				}
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// compare compares what a client knows of its transaction with the entries.
func (b *bank) compare(ctx context.Context, db *txn.DB, d *deed, entries map[uint64]leg) error {
	var found []leg
	for i := range uint64(4) {
		if e, ok := entries[d.Stamp+i]; ok {
			found = append(found, e)
		}
	}
	if d.outcome == history.Unknown && d.id != (txn.ID{}) {
		switch err := insist(func() error {
			if err := db.Outcome(ctx, d.id); !errors.Is(err, txn.ErrOutcomeUnknown) && !errors.Is(err, txn.ErrConflict) {
				return err
			} else if errors.Is(err, txn.ErrConflict) {
				d.outcome = history.Aborted
			}
			return errNobodyKnows
		}); {
		case err == nil:
			d.outcome = history.Committed
		case !errors.Is(err, errNobodyKnows):
			return err
		}
	}
	switch legs := len(d.legs); {
	case d.outcome == history.Aborted && len(found) > 0:
		return fmt.Errorf("ledger: what was refused is there: %+v: %v", d, found)
	case d.outcome == history.Committed && d.legs == nil && len(found) != d.count():
		return fmt.Errorf("ledger: of what was acknowledged without its result is there: %+v: %v", d, found)
	case d.outcome == history.Committed && d.legs != nil && !slices.Equal(found, d.legs):
		return fmt.Errorf("ledger: of what was acknowledged is there: %+v: %v", d, found)
	case d.outcome == history.Unknown && len(found) != 0 && len(found) != d.count():
		return fmt.Errorf("ledger: a part of what may have committed is there: %+v: %v, %d", d, found, legs)
	}
	return nil
}

// errNobodyKnows says that no data server knows the outcome, or that it is a refusal.
var errNobodyKnows = errors.New("no commit is known")

// count is the number of entries of a transaction.
func (d *deed) count() int {
	if d.Kind == transfer {
		return len(d.Accounts) - 1
	}
	return 1
}

// closeAll deletes all accounts, and so writes every one: no lock may be left.
func (b *bank) closeAll(ctx context.Context, db *txn.DB) error {
	for _, a := range b.of {
		err := insist(func() error {
			return db.Update(ctx, func(t *txn.Txn) error {
				lines, err := b.readTable(t, a, 0, 2)
				for _, x := range lines {
					err = errors.Join(err, t.Delete(a.tab, a.key(x.id)))
				}
				return err
			})
		})
		if err != nil {
			return fmt.Errorf("a transaction that writes every key: table %s: %w", a.tab.Name(), err)
		}
	}
	b.total = 0
	err := insist(func() error { return db.View(ctx, func(t *txn.Txn) error { return b.audit(t, 0) }) })
	if err != nil {
		return fmt.Errorf("after all accounts were closed: %w", err)
	}
	return nil
}
