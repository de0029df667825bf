package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// maxTxns bounds a history so that transactions and the helper nodes of real
// time fit the numbers of the dependency graph.
const maxTxns = 1 << 27

// Merge joins logs into one history. The logs are not changed. It returns
// [ErrMalformed] if they cannot belong together.
func Merge(logs ...*Log) (*History, error) {
	h := &History{}
	m := merger{h: h, numbers: make(map[Key]uint32)}
	for _, l := range logs {
		m.add(l)
	}
	if len(m.refs) > maxTxns || m.ops > math.MaxUint32 || len(h.nodes) > math.MaxInt32 {
		return nil, fmt.Errorf("%w: too large", ErrMalformed)
	}
	if err := m.checkProcesses(); err != nil {
		return nil, err
	}
	slices.SortFunc(m.refs, func(a, b txnRef) int {
		x, y := a.txn(), b.txn()
		return cmp.Or(cmp.Compare(x.invoke, y.invoke), cmp.Compare(x.complete, y.complete), cmp.Compare(x.id, y.id))
	})
	m.copyTxns()
	return h, nil
}

type txnRef struct {
	log   *mergedLog
	index uint32
}

func (r txnRef) txn() *txn { return &r.log.txns[r.index] }

func (r txnRef) writes() bool {
	return slices.ContainsFunc(r.log.opsOf(r.index), func(o op) bool { return o.kind == OpAppend || o.kind == OpDelete })
}

type mergedLog struct {
	*Log
	keyOf  []uint32 // key numbers of the history, by those of the log
	nodeOf []uint32
}

type merger struct {
	h       *History
	numbers map[Key]uint32
	refs    []txnRef
	ops     int
}

// add takes over the keys and versions of a log.
func (m *merger) add(l *Log) {
	ml := &mergedLog{Log: l, keyOf: make([]uint32, len(l.keys)), nodeOf: make([]uint32, len(l.nodes))}
	for i, k := range l.keys {
		n, ok := m.numbers[k]
		if !ok {
			n = m.h.addKey(k)
			m.numbers[k] = n
		}
		ml.keyOf[i] = n
	}
	for i := 1; i < len(l.nodes); i++ {
		n := &l.nodes[i]
		if n.parent == 0 {
			ml.nodeOf[i] = m.h.roots[ml.keyOf[n.key]]
		} else {
			ml.nodeOf[i] = m.h.child(ml.nodeOf[n.parent], n.value)
		}
	}
	for i := range l.txns {
		m.refs = append(m.refs, txnRef{ml, uint32(i)})
	}
	m.ops += len(l.ops)
}

// checkProcesses makes sure that each process ran one transaction at a time.
func (m *merger) checkProcesses() error {
	slices.SortFunc(m.refs, func(a, b txnRef) int { return cmp.Compare(a.txn().id, b.txn().id) })
	for i := range m.refs {
		t := m.refs[i].txn()
		if t.complete < t.invoke {
			return fmt.Errorf("%w: %v completes before it is invoked", ErrMalformed, t.id)
		}
		if t.earliest() > t.invoke {
			return fmt.Errorf("%w: %v is stale by %d ns", ErrMalformed, t.id, t.stale)
		}
		if t.snapshot && m.refs[i].writes() {
			return fmt.Errorf("%w: %v is a snapshot and writes", ErrMalformed, t.id)
		}
		if i == 0 {
			continue
		}
		switch before := m.refs[i-1].txn(); {
		case before.id == t.id:
			return fmt.Errorf("%w: two transactions are %v", ErrMalformed, t.id)
		case before.id.Process() == t.id.Process() && t.invoke < before.complete:
			return fmt.Errorf("%w: %v is invoked before %v completes", ErrMalformed, t.id, before.id)
		}
	}
	return nil
}

// copyTxns copies the transactions in the order of refs, which keeps what is
// close in time close in memory.
func (m *merger) copyTxns() {
	h := m.h
	h.txns = make([]txn, 0, len(m.refs))
	h.ops = make([]op, 0, m.ops)
	for _, ref := range m.refs {
		l := ref.log
		for _, o := range l.opsOf(ref.index) {
			switch o.kind {
			case OpScan:
				h.scans = append(h.scans, l.scans[o.arg])
				o.arg = uint64(len(h.scans) - 1)
			case OpAppend:
				o.key = l.keyOf[o.key]
			default:
				o.key = l.keyOf[o.key]
				o.arg = uint64(l.nodeOf[o.arg])
			}
			h.ops = append(h.ops, o)
		}
		t := *ref.txn()
		t.opsEnd = uint32(len(h.ops))
		h.txns = append(h.txns, t)
	}
}

// FromTxns makes a history of transactions written down one by one. Those of
// one process must come in the order in which it ran them. It returns
// [ErrMalformed] if they cannot be a history. The slices are not kept.
func FromTxns(txns []Txn) (*History, error) {
	byProcess := make(map[uint32]*Recorder)
	var logs []*Log
	for i := range txns {
		t := &txns[i]
		switch {
		case t.Outcome >= outcomeCount:
			return nil, fmt.Errorf("%w: %v has no such outcome as %d", ErrMalformed, t.ID, t.Outcome)
		case t.Stale < 0 || t.Stale > 0 && !t.Snapshot:
			return nil, fmt.Errorf("%w: %v is stale by %d ns", ErrMalformed, t.ID, t.Stale)
		}
		r := byProcess[t.ID.Process()]
		if r == nil {
			r = NewRecorder(t.ID.Process())
			byProcess[t.ID.Process()] = r
			logs = append(logs, &r.log)
		}
		r.txns = t.ID.Number() - 1
		r.Begin(t.Invoke)
		if t.Snapshot {
			r.Snapshot(t.Stale)
		}
		for _, o := range t.Ops {
			switch o.Kind {
			case OpAppend:
				r.Append(o.Key, o.Value)
			case OpRead:
				r.Read(o.Key, o.List)
			case OpScan:
				r.Scan(o.Key, o.Hi, o.Rows)
			case OpDelete:
				r.Delete(o.Key, o.List)
			default:
				return nil, fmt.Errorf("%w: %v has no such operation as %d", ErrMalformed, t.ID, o.Kind)
			}
		}
		r.End(t.Outcome, t.Complete)
	}
	return Merge(logs...)
}
