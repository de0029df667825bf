package server

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
)

// The log is replayed by several goroutines. One reads it ahead, in batches. One
// decodes the records in order, keeps what concerns the whole server, and deals
// the writes out to the partitions. Each partition has one that applies its writes
// in the order of the log. Records of different partitions do not depend on each
// other: what one of them has read of another was validated before it was logged.

const (
	// replayBytes is how much of the log a batch has, if no record is larger.
	replayBytes = 1 << 20
	// replayAhead bounds the batches that wait for the next goroutine.
	replayAhead = 2
)

// replayBatch are consecutive records of the log.
type replayBatch struct {
	bytes   []byte
	records []wal.Record // their payloads are in bytes
}

// redoTask is what one record does in one partition.
type redoTask struct {
	at     wal.LSN // of the record
	csn    block.CSN
	writes []wire.Write
	index  uint16
	rows   []byte // loaded into the index; nil: writes
}

// lane are the tasks of one partition.
type lane struct {
	p      *partition
	tasks  []redoTask // of the batch that is being decoded
	writes []wire.Write
	loads  map[uint16]uint64 // bytes of rows that the log loads into each index; removed with the first load
	todo   chan []redoTask
	err    error
	at     wal.LSN // of the record with err
}

// lanes are the lanes of all partitions of the server.
type lanes struct {
	of     []*lane        // by partition
	busy   sync.WaitGroup // counts what is in todo
	ended  sync.WaitGroup
	failed atomic.Bool
}

func (r *recovery) startLanes() {
	for _, p := range r.s.parts.here {
		l := r.lane(p)
		l.todo = make(chan []redoTask, replayAhead)
		r.lanes.ended.Go(func() {
			for tasks := range l.todo {
				if l.err == nil {
					if l.err = l.apply(tasks); l.err != nil {
						r.lanes.failed.Store(true)
					}
				}
				r.lanes.busy.Done()
			}
		})
	}
}

func (r *recovery) lane(p *partition) *lane {
	if r.lanes.of == nil {
		r.lanes.of = make([]*lane, len(r.s.parts.of))
	}
	if r.lanes.of[p.id] == nil {
		r.lanes.of[p.id] = &lane{p: p}
	}
	return r.lanes.of[p.id]
}

// send hands out the tasks dealt so far.
func (r *recovery) send() {
	for _, l := range r.lanes.of {
		if l != nil && l.todo != nil && len(l.tasks) > 0 {
			r.lanes.busy.Add(1)
			l.todo <- l.tasks
			l.tasks, l.writes = make([]redoTask, 0, len(l.tasks)), make([]wire.Write, 0, len(l.writes))
		}
	}
}

// settle returns when everything dealt has been applied.
func (r *recovery) settle() {
	r.send()
	r.lanes.busy.Wait()
}

// replay applies the log from a position on.
func (r *recovery) replay(from wal.LSN) error {
	if from == 0 { // a checkpoint knows how large the indexes are
		if err := r.countLoads(); err != nil {
			return err
		}
	}
	batches, stop := make(chan *replayBatch, replayAhead), make(chan struct{})
	read := make(chan error, 1)
	go func() {
		defer close(batches)
		read <- readBatches(r.s.durable.log, from, batches, stop)
	}()
	r.startLanes()
	var err error
	for b := range batches {
		for i := range b.records {
			if err = r.apply(&b.records[i]); err != nil {
				break
			}
		}
		if err != nil || r.lanes.failed.Load() {
			break
		}
		r.send()
	}
	close(stop)
	r.settle()
	for _, l := range r.lanes.of {
		if l != nil {
			close(l.todo)
		}
	}
	r.lanes.ended.Wait()
	rerr := <-read
	if first := r.firstFault(); first != nil {
		return first // of a record before those that were read and decoded meanwhile
	}
	if err == nil {
		err = rerr
	}
	return err
}

// firstFault is the error of the first record that could not be applied.
func (r *recovery) firstFault() error {
	var first *lane
	for _, l := range r.lanes.of {
		if l != nil && l.err != nil && (first == nil || l.at < first.at) {
			first = l
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("%w: at %d: %w", ErrRecovery, first.at, first.err)
}

// errReplayEnds ends the reader of a replay that has failed.
var errReplayEnds = errors.New("the replay has ended")

// readBatches reads the log and sends it in batches.
func readBatches(log *wal.Log, from wal.LSN, to chan<- *replayBatch, stop <-chan struct{}) error {
	b := &replayBatch{}
	send := func() error {
		select {
		case to <- b:
			b = &replayBatch{records: make([]wal.Record, 0, len(b.records))}
			return nil
		case <-stop:
			return errReplayEnds
		}
	}
	err := log.Replay(from, func(w *wal.Record) error {
		if len(b.records) > 0 && len(b.bytes)+len(w.Payload) > cap(b.bytes) {
			if err := send(); err != nil {
				return err
			}
		}
		if b.bytes == nil {
			b.bytes = make([]byte, 0, max(replayBytes, len(w.Payload)))
		}
		n := len(b.bytes)
		b.bytes = append(b.bytes, w.Payload...)
		b.records = append(b.records, wal.Record{Start: w.Start, End: w.End, Payload: b.bytes[n:]})
		return nil
	})
	if err == nil && len(b.records) > 0 {
		err = send()
	}
	return err
}

// deal gives a partition its writes of a record. It does not copy the rows.
func (r *recovery) deal(p *partition, csn block.CSN, writes []wire.Write) {
	l := r.lane(p)
	n := len(l.writes)
	l.writes = append(l.writes, writes...)
	l.tasks = append(l.tasks, redoTask{at: r.at, csn: csn, writes: slices.Clip(l.writes[n:])})
}

// countLoads reads the log and adds up what it loads, so that an index is made as
// large as it will be, and does not grow row by row.
func (r *recovery) countLoads() error {
	var rec redo.Record
	return r.s.durable.log.Replay(0, func(w *wal.Record) error {
		if len(w.Payload) == 0 || redo.Kind(w.Payload[0]) != redo.Load || rec.Decode(w.Payload) != nil {
			return nil // the replay finds faults
		}
		if p, err := r.partition(rec.Partition); err == nil {
			l := r.lane(p)
			if l.loads == nil {
				l.loads = map[uint16]uint64{}
			}
			l.loads[rec.Index] += uint64(len(rec.Rows))
		}
		return nil
	})
}

// expect makes an empty index as large as the rows that the log loads into it need,
// judged by the first ones. It does nothing if they do not all fit into the memory that
// is left: keys may have been loaded again and again. The caller holds p.mu.
func (l *lane) expect(ix *hosted, first []byte) {
	bytes, ok := l.loads[uint16(ix.def.ID)]
	if !ok {
		return
	}
	delete(l.loads, uint16(ix.def.ID))
	rows := uint64(0)
	for d := wire.NewDecoder(first); d.Left() > 0; rows++ {
		if _, ok := loadedRow(ix.def, &d); !ok {
			return
		}
	}
	if rows == 0 {
		return
	}
	each := uint64(len(first)) / rows
	rows = bytes / max(each, 1)
	if room := l.p.region.MaxBytes() - l.p.arena.Used(); rows < room/(each+restoredOverhead) {
		ix.Expect(rows)
	}
}

// restoredOverhead bounds what a row takes besides its key and its columns: its header,
// what is unused of its block, and its share of the index.
const restoredOverhead = 4 * mem.LineBytes

// prefetchWrites prefetches rows that are about to be written.
func prefetchWrites(has *holdings, writes []wire.Write, stage int) {
	for i := range writes {
		has.prefetch(&writes[i], stage)
	}
}

// prefetch prefetches the row of a write, which may be malformed.
func (h *holdings) prefetch(w *wire.Write, stage int) {
	if int(w.Index) >= len(h.indexes) {
		return
	}
	if ix := h.indexes[w.Index]; ix.def.Strings == w.Strings {
		if near, ok := ix.Server.(index.Prefetcher); ok {
			near.Prefetch(w.Key, stage)
		}
	}
}

func (l *lane) apply(tasks []redoTask) error {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	has := p.has.Load()
	for i := range tasks {
		t := &tasks[i]
		l.at = t.at
		for stage := range index.PrefetchStages {
			if near := i + nearRows>>stage; near < len(tasks) {
				prefetchWrites(has, tasks[near].writes, stage)
			}
		}
		if t.rows != nil {
			ix := has.indexes[t.index]
			l.expect(ix, t.rows)
			if v := p.loadRows(ix, t.rows, t.csn, ix.Restore); v.code == wire.OutOfMemory { // it was refused then, too; or this server has less memory
				return fmt.Errorf("%v: partition %d: %s", redo.Load, p.id, v.text)
			}
			continue // what was refused then is refused now
		}
		p.arena.CoverLate(t.csn)
		for i := range t.writes {
			w := &t.writes[i]
			if int(w.Index) >= len(has.indexes) || !fits(has.indexes[w.Index].def, w) {
				return fmt.Errorf("partition %d: a write of %d bytes to index %d of %d", p.id, len(w.Row), w.Index, len(has.indexes))
			}
			if err := p.redoWrite(has.indexes[w.Index], w, t.csn); err != nil {
				return fmt.Errorf("partition %d: %w", p.id, err)
			}
		}
	}
	return nil
}
