// Package history records what transactions did and decides afterwards whether
// it was strictly serializable.
//
// The workload is list-append: the value of a key is a list, and a transaction
// appends values that are unique within their key, reads whole lists, scans
// ranges of keys and deletes keys. Since a list shows which appends it has seen
// and in what order, the order of versions and the dependencies between
// transactions can be read off the results (Kingsbury and Alvaro, "Elle:
// Inferring Isolation Anomalies from Experimental Observations", VLDB 2020; the
// anomalies are named after Adya, "Weak Consistency", 1999). A history is
// strictly serializable only if those dependencies and real time together have
// no cycle; [Check] looks for cycles, names what it finds and shows the shortest
// one.
//
// Each worker records into its own [Recorder]. [Merge] joins their logs into a
// [History]; logs can also be written to files by several processes and joined
// by [Load]. [Generator] plans transactions that make anomalies likely.
//
// Every reported anomaly is real: no order of the transactions explains the
// results. The converse holds for histories without deletes: there no anomaly
// is missed. A deleted key looks like one never written, so there the checker
// concludes only what real time decides; see [Check].
//
// A snapshot is a transaction that only reads. A strict one takes its time after
// it is invoked, so it promises what every transaction does. A stale one may
// read a state from before it was invoked, up to a bound. That state is still
// one of the strictly serializable history: it has all effects of the
// transactions that come first in its order, and none of the others.
package history

import (
	"errors"
	"fmt"
	"iter"
)

// Key names a list. Scans order keys as unsigned numbers.
type Key uint64

// Value is an element of a list. No two appends to one key, aborted ones
// included, may use the same value; [Generator] ensures that.
type Value uint64

// TxnID identifies a recorded transaction: the process that ran it in the high
// 32 bits, its number within that process, counted from 1, in the low ones.
type TxnID uint64

// MakeTxnID returns the identifier of the n-th transaction of a process.
func MakeTxnID(process, n uint32) TxnID { return TxnID(process)<<32 | TxnID(n) }

// Process returns the process that ran the transaction.
func (id TxnID) Process() uint32 { return uint32(id >> 32) }

// Number returns the transaction's number within its process.
func (id TxnID) Number() uint32 { return uint32(id) }

// String returns the form in which reports name a transaction, such as T3.17.
func (id TxnID) String() string { return fmt.Sprintf("T%d.%d", id.Process(), id.Number()) }

// Outcome is the result of a transaction, as far as its client knows.
type Outcome uint8

const (
	// Unknown is the outcome of a transaction whose client got no answer. It
	// may have taken effect at any time since it was invoked, or never.
	Unknown Outcome = iota
	// Committed means that the transaction took effect before it completed.
	Committed
	// Aborted means that the transaction has no effect at any time.
	Aborted

	outcomeCount
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case Unknown:
		return "unknown"
	case Committed:
		return "committed"
	case Aborted:
		return "aborted"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// OpKind is the kind of an operation.
type OpKind uint8

const (
	// OpAppend appends Value to the list of Key, creating the key if absent.
	OpAppend OpKind = iota
	// OpRead reads the list of Key; an empty List says that Key is absent.
	OpRead
	// OpScan reads all keys in [Key, Hi]; those not in Rows are absent.
	OpScan
	// OpDelete deletes Key, whose list was List.
	OpDelete

	opRow // one row of the scan before it; only in tables
	opKindCount
)

// Row is a key and its list, as a scan returns them. A row with an empty list
// means that the key is absent.
type Row struct {
	Key  Key
	List []Value
}

// Op is one operation of a transaction, with its result.
type Op struct {
	Kind  OpKind
	Key   Key     // the key; the lower end of a scan
	Hi    Key     // OpScan: the upper end, included
	Value Value   // OpAppend
	List  []Value // OpRead, OpDelete
	Rows  []Row   // OpScan: the rows found, by ascending key
}

// Txn is one recorded transaction, in the form in which tests write histories
// down and reports show them.
//
// Invoke and Complete are nanoseconds of a monotonic clock that is comparable
// between all processes of a history: on one host CLOCK_MONOTONIC is, while
// time.Since is comparable only between goroutines that share its argument.
type Txn struct {
	ID       TxnID
	Invoke   int64 // before the first operation
	Complete int64 // after the outcome was known, or the client gave up
	Outcome  Outcome
	Snapshot bool  // only reads, all at one time
	Stale    int64 // of a snapshot: how many nanoseconds before Invoke that time may be; 0 if it is strict
	Ops      []Op
}

// ErrMalformed is returned when the recorded transactions cannot be a history:
// a value appended to a key twice, a transaction that completes before it is
// invoked, two with one identifier, a snapshot that writes, or a process that
// runs two at a time. The fault is with the recording client, not with the
// database.
var ErrMalformed = errors.New("history: malformed")

// node is a version of a key: the list that its ancestors' values and its own
// make up. The root of a key is the absent, empty list. Lists read by different
// transactions share their prefixes, so a read is one number, and versions that
// are not prefixes of one another show as branches.
type node struct {
	value   Value
	parent  uint32 // 0 for a root
	child   uint32 // newest child, 0 for none
	sibling uint32 // next older child of parent
	key     uint32 // index into keys
	depth   uint32 // length of the list
}

// op is a recorded operation: for OpAppend arg is the value; for OpRead,
// OpDelete and opRow, the node read; for OpScan, the index into scans, and its
// rows follow.
type op struct {
	arg  uint64
	key  uint32 // index into keys; unused by OpScan
	kind OpKind
}

type scanRange struct {
	lo, hi Key
	rows   uint32
}

type txn struct {
	id               TxnID
	invoke, complete int64
	stale            int64  // of a snapshot that is not strict
	opsEnd           uint32 // the operations start where those of the previous one end
	outcome          Outcome
	snapshot         bool
}

// earliest is the time from which on a transaction may take effect.
func (t *txn) earliest() int64 { return t.invoke - t.stale }

// tables hold transactions by columns: the garbage collector has no pointers to
// follow, and the numbers are dense enough to index arrays.
type tables struct {
	keys  []Key
	roots []uint32 // by key number
	nodes []node   // nodes[0] is unused, so that 0 means none; parents precede children
	txns  []txn
	ops   []op
	scans []scanRange
}

// addKey adds a key and its root and returns the key's number.
func (t *tables) addKey(k Key) uint32 {
	if len(t.nodes) == 0 {
		t.nodes = append(t.nodes, node{})
	}
	number := uint32(len(t.keys))
	t.keys = append(t.keys, k)
	t.roots = append(t.roots, uint32(len(t.nodes)))
	t.nodes = append(t.nodes, node{key: number})
	return number
}

// addChild adds a version that appends v to parent.
func (t *tables) addChild(parent uint32, v Value) uint32 {
	n := uint32(len(t.nodes))
	p := &t.nodes[parent]
	t.nodes = append(t.nodes, node{
		value: v, parent: parent, sibling: p.child, key: p.key, depth: p.depth + 1,
	})
	t.nodes[parent].child = n
	return n
}

// child finds the version that appends v to parent, or adds it.
func (t *tables) child(parent uint32, v Value) uint32 {
	for c := t.nodes[parent].child; c != 0; c = t.nodes[c].sibling {
		if t.nodes[c].value == v {
			return c
		}
	}
	return t.addChild(parent, v)
}

// version finds or adds the version of a key that is this list.
func (t *tables) version(key uint32, list []Value) uint32 {
	n := t.roots[key]
	for _, v := range list {
		n = t.child(n, v)
	}
	return n
}

// list returns the values of a version.
func (t *tables) list(n uint32) []Value {
	if n == 0 || t.nodes[n].depth == 0 {
		return nil
	}
	values := make([]Value, t.nodes[n].depth)
	for ; t.nodes[n].parent != 0; n = t.nodes[n].parent {
		values[t.nodes[n].depth-1] = t.nodes[n].value
	}
	return values
}

// opsOf returns the operations of a transaction.
func (t *tables) opsOf(i uint32) []op {
	start := uint32(0)
	if i > 0 {
		start = t.txns[i-1].opsEnd
	}
	return t.ops[start:t.txns[i].opsEnd]
}

// txn expands a transaction.
func (t *tables) txn(i uint32) Txn {
	x := &t.txns[i]
	out := Txn{ID: x.id, Invoke: x.invoke, Complete: x.complete, Outcome: x.outcome, Snapshot: x.snapshot, Stale: x.stale}
	for _, o := range t.opsOf(i) {
		switch o.kind {
		case OpAppend:
			out.Ops = append(out.Ops, Op{Kind: OpAppend, Key: t.keys[o.key], Value: Value(o.arg)})
		case OpRead, OpDelete:
			out.Ops = append(out.Ops, Op{Kind: o.kind, Key: t.keys[o.key], List: t.list(uint32(o.arg))})
		case OpScan:
			s := t.scans[o.arg]
			out.Ops = append(out.Ops, Op{Kind: OpScan, Key: s.lo, Hi: s.hi})
		case opRow:
			scan := &out.Ops[len(out.Ops)-1]
			scan.Rows = append(scan.Rows, Row{Key: t.keys[o.key], List: t.list(uint32(o.arg))})
		}
	}
	return out
}

// Log has the transactions of one recorder or one file. Use [Merge] to check
// it. It is immutable once its recorder has stopped.
type Log struct{ tables }

// Len returns the number of transactions.
func (l *Log) Len() int { return len(l.txns) }

// History is a set of transactions of any number of processes, ordered by
// invocation. It is immutable; any number of goroutines may use it.
type History struct{ tables }

// Len returns the number of transactions.
func (h *History) Len() int { return len(h.txns) }

// Txn returns the i-th transaction by time of invocation. The caller owns it.
func (h *History) Txn(i int) Txn { return h.txn(uint32(i)) }

// All returns an iterator over the transactions by time of invocation.
func (h *History) All() iter.Seq[Txn] {
	return func(yield func(Txn) bool) {
		for i := range h.txns {
			if !yield(h.Txn(i)) {
				return
			}
		}
	}
}
