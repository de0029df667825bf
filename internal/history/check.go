package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Options configures a check. The zero value checks strict serializability.
type Options struct {
	// Serializable drops real time and process order: plain serializability.
	Serializable bool
	// MaxAnomalies is the maximum number of anomalies in a report; zero means
	// 20.
	MaxAnomalies int
}

// Check decides whether a history is strictly serializable. It returns
// [ErrMalformed] if a value was appended to a key twice.
//
// A transaction of unknown outcome counts as committed if a transaction that
// counts saw one of its appends, and is left out otherwise. An aborted one is
// left out, except that no transaction may see its appends.
//
// Without deletes, the report has an anomaly if and only if the history is not
// strictly serializable. With deletes an anomaly is still a proof, but some are
// missed: after a delete, being absent is no longer a distinct version, so a
// read of an absent key is ordered against the creations and deletions of that
// key only by real time. The lives of a key are ordered by real time as well; a
// key whose order is uncertain is not checked for absence at all.
//
// A stale snapshot takes effect after the time that is its bound before its
// invocation, and before it completes. Otherwise it is like all others.
//
// It runs on the calling goroutine; time and memory grow with the number of
// results, a scan counting one for each key of the history in its range.
func Check(h *History, o Options) (*Report, error) {
	if o.MaxAnomalies <= 0 {
		o.MaxAnomalies = 20
	}
	c := &checker{History: h, o: o, report: &Report{Txns: len(h.txns)}}
	if err := c.collectAppends(); err != nil {
		return nil, err
	}
	c.assignWriters()
	c.observeAll()
	c.checkVersions()
	c.checkReads()
	g := c.buildGraph()
	c.report.Edges = len(g.dst)
	c.findCycles(g)
	return c.report, nil
}

// checker holds the state of one check. Transactions, keys, versions and
// appends are all numbers into arrays; those of appends are one more than the
// index, so that zero means none.
type checker struct {
	*History
	o      Options
	report *Report

	appends      []appended
	appendsStart []uint32 // by transaction: its first append
	table        appendTable

	writer   []uint32 // by version: the append that made it last
	witness  []uint32 // by version: one more than a considered transaction that saw it or a longer one
	included []bool   // by transaction: considered
	pending  []uint32 // of unknown outcome and just found to be seen

	seen      []uint32 // observations: version<<1, plus 1 if by a scan
	seenRange []span   // by transaction

	byKey   []uint32 // key numbers by ascending key
	touched []bool   // by key: has an append
	lives   map[uint32]*keyLives
	states  keyStates

	tails  []uint32 // considered appends that nobody saw, by key and then completion
	tailOf []span   // by key: its part of tails
	leaf   []uint32 // by key: the longest live version, 0 if there are several
	edges  []uint64
}

type span struct{ from, to uint32 }

// appended is one append of any transaction.
type appended struct {
	value Value
	key   uint32
	txn   uint32
	node  uint32 // the version it made; 0 if no considered transaction saw it
	prev  uint32 // the transaction's previous append to the key, none after a delete
	base  uint32 // the version that the transaction read before or after it, 0 if it did not
	final bool   // the transaction did not change the key afterwards
	dead  bool   // the transaction deleted the key afterwards
	gone  bool   // one left out may have deleted it
}

// maxWitnesses bounds the transactions shown for an anomaly that is no cycle.
const maxWitnesses = 4

// add reports an anomaly that is no cycle.
func (c *checker) add(kind Kind, detail string, txns ...uint32) {
	if len(c.report.Anomalies) >= c.o.MaxAnomalies {
		c.report.More = true
		return
	}
	a := Anomaly{Kinds: []Kind{kind}, Detail: detail}
	for i, t := range txns {
		if i < maxWitnesses && !slices.Contains(txns[:i], t) {
			a.Txns = append(a.Txns, c.txn(t))
		}
	}
	c.report.Anomalies = append(c.report.Anomalies, a)
}

// collectAppends numbers all appends and links those of one transaction to one
// key.
func (c *checker) collectAppends() error {
	count := 0
	for i := range c.ops {
		if c.ops[i].kind == OpAppend {
			count++
		}
	}
	c.appends = make([]appended, 1, count+1)
	c.appendsStart = make([]uint32, len(c.txns)+1)
	c.touched = make([]bool, len(c.keys))
	c.table = newAppendTable(count)
	last := make([]uint32, len(c.keys)) // last append to the key so far
	for t := range uint32(len(c.txns)) {
		c.appendsStart[t] = uint32(len(c.appends))
		for _, o := range c.opsOf(t) {
			switch o.kind {
			case OpAppend:
				a := uint32(len(c.appends))
				c.appends = append(c.appends, appended{value: Value(o.arg), key: o.key, txn: t, final: true})
				if other := c.table.insert(c.appends, a); other != 0 {
					return fmt.Errorf("%w: %v and %v both append %d to key %d", ErrMalformed,
						c.txns[c.appends[other].txn].id, c.txns[t].id, o.arg, c.keys[o.key])
				}
				if p := last[o.key]; p != 0 && c.appends[p].txn == t && !c.appends[p].dead {
					c.appends[p].final = false
					c.appends[a].prev = p
				}
				last[o.key] = a
				c.touched[o.key] = true
			case OpDelete:
				for p := last[o.key]; p != 0 && c.appends[p].txn == t; p = c.appends[p].prev {
					c.appends[p].final, c.appends[p].dead = false, true
				}
			}
		}
	}
	c.appendsStart[len(c.txns)] = uint32(len(c.appends))
	return nil
}

// assignWriters finds the append that made each version.
func (c *checker) assignWriters() {
	c.writer = make([]uint32, len(c.nodes))
	for n := 1; n < len(c.nodes); n++ {
		if c.nodes[n].parent != 0 {
			c.writer[n] = c.table.find(c.appends, c.nodes[n].key, c.nodes[n].value)
		}
	}
	c.table = appendTable{}
	c.byKey = make([]uint32, len(c.keys))
	for i := range c.byKey {
		c.byKey[i] = uint32(i)
	}
	slices.SortFunc(c.byKey, func(a, b uint32) int { return cmp.Compare(c.keys[a], c.keys[b]) })
}

// writerTxn returns one more than the transaction that made a version last, or
// 0 if there is none.
func (c *checker) writerTxn(n uint32) uint32 {
	if a := c.writer[n]; a != 0 {
		return c.appends[a].txn + 1
	}
	return 0
}

// appendTable finds appends by key and value: open addressing over append
// numbers, since a map of millions of pairs costs several times as much.
type appendTable struct {
	slots []uint32
	mask  uint64
}

func newAppendTable(count int) appendTable {
	size := 16
	for size < 2*count {
		size *= 2
	}
	return appendTable{slots: make([]uint32, size), mask: uint64(size - 1)}
}

func (t *appendTable) home(key uint32, v Value) uint64 {
	h := (uint64(v) ^ uint64(key)<<32) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29 ^ uint64(key)) * 0xbf58476d1ce4e5b9
	return (h ^ h>>32) & t.mask
}

// insert enters append a and returns 0, or the one there with its key and value.
func (t *appendTable) insert(appends []appended, a uint32) uint32 {
	key, v := appends[a].key, appends[a].value
	for i := t.home(key, v); ; i = (i + 1) & t.mask {
		switch other := t.slots[i]; {
		case other == 0:
			t.slots[i] = a
			return 0
		case appends[other].key == key && appends[other].value == v:
			return other
		}
	}
}

// find returns the append of a value to a key, or 0.
func (t *appendTable) find(appends []appended, key uint32, v Value) uint32 {
	for i := t.home(key, v); ; i = (i + 1) & t.mask {
		a := t.slots[i]
		if a == 0 || appends[a].key == key && appends[a].value == v {
			return a
		}
	}
}
