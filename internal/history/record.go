package history

import (
	"fmt"
	"io"
)

// Recorder records the transactions of one process, that is, of one client that
// runs one transaction at a time. Make one with [NewRecorder]. It is for one
// goroutine; it keeps none of the slices passed to it.
//
// A transaction is recorded as
//
//	r.Begin(now)
//	r.Read(…), r.Append(…), …
//	r.End(outcome, now)
//
// with operations and results in the order the body made them. If the database
// runs the body again because the attempt conflicted, call Restart first.
//
// Calls out of that order are a fault of the caller and panic.
type Recorder struct {
	log      Log
	numbers  map[Key]uint32
	process  uint32
	txns     uint32 // begun so far, flushed ones included
	open     bool
	invoke   int64
	stale    int64
	snapshot bool
	openOps  int // length of log.ops when the open transaction began
	openScan int
	written  int // nodes that a Flush has written
	began    bool
}

// NewRecorder returns a recorder for a process. No other recorder of the
// history may use the same process number.
func NewRecorder(process uint32) *Recorder {
	r := &Recorder{process: process, numbers: make(map[Key]uint32)}
	r.log.nodes = make([]node, 1)
	r.written = 1
	return r
}

// Begin starts a transaction. now is read before the first operation.
func (r *Recorder) Begin(now int64) TxnID {
	if r.open {
		panic("history: Begin within a transaction")
	}
	r.open = true
	r.txns++
	r.invoke, r.snapshot, r.stale = now, false, 0
	r.openOps, r.openScan = len(r.log.ops), len(r.log.scans)
	return MakeTxnID(r.process, r.txns)
}

// Snapshot records that the transaction is a snapshot: it only reads, all at one
// time. That time is after Begin, or if stale is more than 0 at most so many
// nanoseconds before.
func (r *Recorder) Snapshot(stale int64) {
	r.mustBeOpen()
	if stale < 0 {
		panic("history: a snapshot of a time to come")
	}
	r.snapshot, r.stale = true, stale
}

// Restart forgets the operations since Begin: the attempt had no effect and its
// results were not used. The time of invocation stays.
func (r *Recorder) Restart() {
	r.mustBeOpen()
	r.log.ops = r.log.ops[:r.openOps]
	r.log.scans = r.log.scans[:r.openScan]
}

// Append records that v was appended to k.
func (r *Recorder) Append(k Key, v Value) {
	r.mustBeOpen()
	r.log.ops = append(r.log.ops, op{kind: OpAppend, key: r.number(k), arg: uint64(v)})
}

// Read records that k held list; an empty list records that k is absent.
func (r *Recorder) Read(k Key, list []Value) { r.observe(OpRead, k, list) }

// Delete records that k, which held list, was deleted. A delete that found no
// key is a Read of the empty list.
func (r *Recorder) Delete(k Key, list []Value) {
	if len(list) == 0 {
		r.observe(OpRead, k, nil)
		return
	}
	r.observe(OpDelete, k, list)
}

// Scan records that rows are all the keys in [lo, hi], and that any other key
// in between is absent. A scan that stopped early, at a limit, must be recorded
// with hi set to the last key that it is known to have covered.
func (r *Recorder) Scan(lo, hi Key, rows []Row) {
	r.mustBeOpen()
	r.log.ops = append(r.log.ops, op{kind: OpScan, arg: uint64(len(r.log.scans))})
	r.log.scans = append(r.log.scans, scanRange{lo: lo, hi: hi, rows: uint32(len(rows))})
	for _, row := range rows {
		r.observe(opRow, row.Key, row.List)
	}
}

// End finishes the transaction. now is read after its outcome was known.
func (r *Recorder) End(outcome Outcome, now int64) {
	r.mustBeOpen()
	if outcome >= outcomeCount {
		panic("history: no such outcome")
	}
	r.open = false
	r.log.txns = append(r.log.txns, txn{
		id:     MakeTxnID(r.process, r.txns),
		invoke: r.invoke, complete: now, stale: r.stale,
		opsEnd:  uint32(len(r.log.ops)),
		outcome: outcome, snapshot: r.snapshot,
	})
}

// Log returns the recorded transactions that are not yet flushed. The recorder
// must not be used while the log is in use.
func (r *Recorder) Log() *Log {
	if r.open {
		panic("history: Log within a transaction")
	}
	return &r.log
}

// Flush writes the finished transactions to w and forgets them, so that a long
// run does not hold its history in memory. All flushes of a recorder together
// write a file for [Load] and [ReadLog]. If the process dies between two
// flushes, the file is complete up to the last one. After an error the end of
// the file is uncertain, and the recorder must not be flushed again.
func (r *Recorder) Flush(w io.Writer) error {
	if r.open {
		panic("history: Flush within a transaction")
	}
	e := encoder{w: w, tables: &r.log.tables, nodes: r.written}
	if !r.began {
		e.header()
		r.began = true
	}
	e.rest()
	if e.err != nil {
		return fmt.Errorf("history: flush: %w", e.err)
	}
	r.written = len(r.log.nodes)
	r.log.txns, r.log.ops, r.log.scans = r.log.txns[:0], r.log.ops[:0], r.log.scans[:0]
	return nil
}

func (r *Recorder) mustBeOpen() {
	if !r.open {
		panic("history: an operation outside a transaction")
	}
}

func (r *Recorder) number(k Key) uint32 {
	n, ok := r.numbers[k]
	if !ok {
		n = r.log.addKey(k)
		r.numbers[k] = n
	}
	return n
}

func (r *Recorder) observe(kind OpKind, k Key, list []Value) {
	r.mustBeOpen()
	key := r.number(k)
	r.log.ops = append(r.log.ops, op{kind: kind, key: key, arg: uint64(r.log.version(key, list))})
}
