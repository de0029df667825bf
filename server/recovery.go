package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn/stats"
)

// ErrRecovery reports a log that does not fit what it is applied to. Its text
// names the position.
var ErrRecovery = errors.New("server: the log cannot be applied")

// Recovered says what a durable server found when it started.
type Recovered struct {
	// Epoch counts the starts on this directory; 1 means that it was empty.
	Epoch uint32
	// Records and Bytes of the log that were applied.
	Records, Bytes uint64
	// Rows are those of all indexes afterwards.
	Rows uint64
	// InDoubt are the transactions that were prepared and not decided.
	InDoubt int
	// CheckpointRows are those of the checkpoint with which recovery began.
	CheckpointRows uint64
	// Checkpoint is how long the checkpoint took, Replay the log, Train the models.
	Checkpoint, Replay, Train time.Duration
}

// recovery fills the partitions of a server before it serves. Its methods are for
// one goroutine, which replays the log with the help of others.
type recovery struct {
	s      *Server
	tick   clock.Tick // highest so far
	record redo.Record
	doubts map[placement.Partition]*doubts
	at     wal.LSN    // of the record that is being taken
	start  clock.Tick // the log has all shares of every commit after it, except of those still in doubt
	lanes  lanes
	got    Recovered

	now, done, total atomic.Uint64 // the phase, and how far it is
}

// Phases of a recovery.
const (
	phaseCheckpoint = iota
	phaseLog
	phaseModels
)

var phaseNames = [...]string{phaseCheckpoint: "checkpoint", phaseLog: "log", phaseModels: "models"}

// watchEvery is the time between reports of a recovery's progress. A variable, for
// tests.
var watchEvery = 100 * time.Millisecond

// phase begins a phase.
func (r *recovery) phase(phase, total uint64) {
	r.done.Store(0)
	r.total.Store(total)
	r.now.Store(phase)
}

// watch reports the recovery's progress to Config.Recovering, until the function that
// it returns has returned.
func (r *recovery) watch() (stop func()) {
	tell := r.s.cfg.Recovering
	if tell == nil {
		return func() {}
	}
	began, ended := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for {
			select {
			case <-ended:
				return
			case <-t.C:
				tell(stats.Recovering{Phase: phaseNames[r.now.Load()], Done: r.done.Load(), Total: r.total.Load(), Seconds: time.Since(began).Seconds()})
			}
		}
	})
	return func() {
		close(ended)
		wg.Wait()
	}
}

// prepareCatalog sets the catalogue with which a durable server begins: that of its
// directory. It fails with ErrConfig if a different one is configured.
func (c *Config) prepareCatalog(d *datadir.Dir) error {
	made, err := tables.ParseCatalog(d.Catalog)
	if err != nil {
		return fmt.Errorf("%w: %s: catalogue: %w", ErrRecovery, d.Path(), err)
	}
	if c.Catalog == nil {
		c.Catalog = made
		return nil
	}
	have, err := json.Marshal(made)
	if err != nil {
		return err
	}
	want, err := json.Marshal(c.Catalog)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, want) {
		place, had, wanted := difference(have, want)
		return fmt.Errorf("%w: %s was made with other tables than the program has (%s: %s, the program has %s)", ErrConfig, d.Path(), place, had, wanted)
	}
	return nil
}

// run applies the newest checkpoint and the log to the empty partitions, begins the
// epoch, and starts the log. If it fails before it begins the epoch, the directory does
// not count as served.
func (r *recovery) run() error {
	s, d := r.s, r.s.durable
	defer r.watch()()
	from, err := r.checkpoint()
	if err != nil {
		return err
	}
	replay := time.Now()
	r.phase(phaseLog, uint64(d.log.End()-from))
	if err := r.replay(from); err != nil {
		return err
	}
	if err := r.resume(); err != nil {
		return err
	}
	for _, p := range s.parts.here {
		p.mu.Lock()
		p.ticks.adopt(max(r.tick+1, p.srv.clocks.now()))
		p.mu.Unlock()
		for _, ix := range p.has.Load().indexes {
			r.got.Rows += ix.Stats().Rows
		}
	}
	r.got.Replay = time.Since(replay)
	doubts := map[twophase.ID]struct{}{}
	need := clock.Tick(0)
	for _, of := range r.doubts {
		for id := range of.shares {
			doubts[id] = struct{}{}
			if _, ok := of.before[id]; ok {
				need = r.tick + 1
			}
		}
	}
	d.start.set(r.start, need)
	r.got.InDoubt = len(doubts)
	if r.got.Records > 0 || from > 0 {
		r.train()
		s.log.Info("recovered", "epoch", r.got.Epoch, "checkpoint_rows", r.got.CheckpointRows, "records", r.got.Records, "bytes", r.got.Bytes, "rows", r.got.Rows,
			"checkpoint", r.got.Checkpoint, "replay", r.got.Replay, "train", r.got.Train)
	}
	if err := r.beginEpoch(); err != nil {
		return err
	}
	d.log.Start()
	d.releases = true
	go d.release()
	r.doubtCopies()
	started := redo.Record{Kind: redo.Started, Epoch: s.cfg.hosted.Epoch, Tick: max(s.clocks.now(), s.cfg.hosted.After)}
	_, err = d.log.AppendWait(started.Append(nil))
	return err
}

// beginEpoch begins the epoch in the directory, and after that in the set of copies: if
// the set had the epoch first, it would refuse a later start that begins the epoch
// again. The set is read before: a directory that was replaced begins no epoch.
func (r *recovery) beginEpoch() error {
	d := r.s.durable
	if err := removeBackups(d.s.cfg.FS, d.s.cfg.Dir); err != nil {
		return err
	}
	set, err := d.askSet()
	if err != nil {
		return err
	}
	if err := d.dir.Begin(); err != nil {
		return err
	}
	return d.openGroup(set)
}

// doubtCopies lowers the horizons if the copies in sync are not known to have all that
// was recovered: nothing of it may be acknowledged before.
func (r *recovery) doubtCopies() {
	d := r.s.durable
	at := d.log.End()
	if d.safe() >= at {
		return
	}
	d.recovered = at
	for _, p := range d.s.parts.here {
		p.records.pend(at, 1)
		p.records.logged = at // a refusal, or the result of a procedure, reveals what was recovered, too
	}
}

// train trains the models of all partitions at once.
func (r *recovery) train() {
	start := time.Now()
	r.phase(phaseModels, uint64(len(r.s.parts.of)))
	var wg sync.WaitGroup
	for _, p := range r.s.parts.of {
		wg.Go(func() {
			if p != nil {
				p.training.trainAll()
			}
			r.done.Add(1)
		})
	}
	wg.Wait()
	r.got.Train = time.Since(start)
}

// Recovered returns what the server found when it started.
func (s *Server) Recovered() Recovered { return s.recovered }

// apply applies the next record of the log. When it returns, changes of the whole
// server are done, and the partitions' writes are dealt out.
func (r *recovery) apply(w *wal.Record) error {
	rec := &r.record
	r.at = w.Start
	if err := rec.Decode(w.Payload); err != nil {
		return fmt.Errorf("%w: at %d: %w", ErrRecovery, w.Start, err)
	}
	r.got.Records++
	r.got.Bytes += uint64(w.End - w.Start)
	r.done.Store(r.got.Bytes)
	var err error
	switch rec.Kind {
	case redo.Commit:
		for i := range rec.Parts {
			if err = r.part(&rec.Parts[i], rec.Parts[i].CSN); err != nil {
				break
			}
		}
		if rec.Session != (wire.ID{}) {
			r.s.outcomes.restore(rec.Session, append([]byte{byte(wire.OK)}, rec.Result...))
		}
		if err == nil && rec.Step.Kind != 0 {
			err = r.step(rec)
		}
	case redo.Prepared, redo.Decided, redo.Departed:
		err = r.step(rec)
	case redo.Load:
		err = r.load(rec)
	case redo.Sealed:
		for _, p := range r.s.parts.here {
			p.sealed = true
		}
	case redo.Catalog:
		err = r.catalog(rec.Catalog)
	case redo.Started:
		r.tick = max(r.tick, rec.Tick)
		err = r.checkServed(rec.Epoch)
	case redo.Closed:
		r.tick = max(r.tick, rec.Tick)
	}
	if err != nil {
		return fmt.Errorf("%w: at %d: %v: %w", ErrRecovery, w.Start, rec.Kind, err)
	}
	return nil
}

// checkServed checks a record that the directory was served in an epoch. It fails with
// ErrLost if that is not before the present one.
func (r *recovery) checkServed(epoch uint32) error {
	if epoch >= r.s.cfg.hosted.Epoch {
		return fmt.Errorf("%w: %s was served in epoch %d, and its file EPOCH is of an earlier one: %s", ErrLost, r.s.cfg.Dir, epoch, whenLost)
	}
	return nil
}

// partition returns a partition that the log names.
func (r *recovery) partition(id placement.Partition) (*partition, error) {
	if p := r.s.parts.get(id); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("partition %d is not of this server", id)
}

func (r *recovery) catalog(b []byte) error {
	r.settle() // the records before it, in the version before
	c, err := r.s.catalog.Load().Follow(b)
	if err != nil {
		return err
	}
	for _, p := range r.s.parts.here {
		if err := p.makeIndexes(c); err != nil {
			return err
		}
		p.use(c)
	}
	r.s.catalog.Store(c)
	return nil
}

func (r *recovery) load(rec *redo.Record) error {
	p, err := r.partition(rec.Partition)
	if err != nil {
		return err
	}
	has := p.has.Load()
	if int(rec.Index) >= len(has.indexes) {
		return fmt.Errorf("partition %d has no index %d", p.id, rec.Index)
	}
	r.tick = max(r.tick, rec.CSN.Tick())
	l := r.lane(p)
	l.tasks = append(l.tasks, redoTask{at: r.at, csn: rec.CSN, index: rec.Index, rows: rec.Rows})
	return nil
}

// part deals out the writes of a commit in one partition. For each key the newest CSN
// wins.
func (r *recovery) part(part *redo.Part, csn block.CSN) error {
	p, err := r.partition(part.Partition)
	if err != nil {
		return err
	}
	r.tick = max(r.tick, csn.Tick())
	r.deal(p, csn, part.Writes)
	return nil
}

// redoWrite applies one write of the log. The caller holds p.mu.
func (p *partition) redoWrite(ix *hosted, w *wire.Write, csn block.CSN) error {
	if w.Op == wire.Delete {
		return ix.Restore(w.Key, nil, block.Absent(csn))
	}
	row := p.writer.rowWords(w.Row)
	if ix.def.IsTwin() { // rows are elsewhere now, and a client may have said anything of them
		clear(row)
	}
	return ix.Restore(w.Key, row, block.Present(csn))
}
