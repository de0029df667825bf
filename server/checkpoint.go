package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"

	"github.com/cockroachdb/errors/oserror"
)

// A checkpoint is fuzzy: rows are visited in turns of the executors, beside
// writers. It begins at a position of the log, and what it lacks of a transaction
// that was committed later is in the log after that position. It is complete when
// the log is durable up to the end of the visit, so that it never tells more than
// the log. Then, and not before, the log is cut.

// Defaults and bounds of checkpoints.
const (
	checkpointBytesDefault = 256 << 20
	checkpointRateDefault  = 64 << 20
	// visitWords bounds a turn of an executor, in words read.
	visitWords = 2 << 10
	// checkpointPoll is the time between looks at the length of the log, checkpointRest
	// the pause after a failed checkpoint.
	checkpointPoll = 50 * time.Millisecond
	checkpointRest = 5 * time.Second
	// settleMax bounds the wait for transactions that ran when the checkpoint
	// began.
	settleMax = time.Minute
)

// Kinds of blobs in a checkpoint. The numbers are part of the format.
const (
	blobCatalog  = 1 // the version of the catalogue, as in a record of the log
	blobSealed   = 2 // of a partition whose loading has ended
	blobOutcomes = 3 // the last outcomes of sessions
	blobForgot   = 4 // sessions were forgotten that may still ask
	blobSteps    = 5 // a partition's state of the commit protocol, as the log before the checkpoint has it
	blobEpoch    = 6 // the epoch in which the checkpoint was made
)

// CheckpointDir is the name of the directory of checkpoints in a server's data
// directory.
const CheckpointDir = "checkpoints"

// checkpoints makes the checkpoints of a durable server, and counts them.
type checkpoints struct {
	d            *durable
	mu           sync.Mutex    // held while a checkpoint is made
	from         atomic.Uint64 // position of the newest one
	done, failed atomic.Uint64
	rows, total  atomic.Uint64 // of the one under way
}

// errUnsettled reports a transaction that has run since before the checkpoint
// began. The log before it has its outcome, so the log must stay.
var errUnsettled = errors.New("a transaction has not ended")

// keep makes a checkpoint whenever the log has grown by CheckpointBytes, until ctx
// ends.
func (k *checkpoints) keep(ctx context.Context) {
	t := time.NewTimer(checkpointPoll)
	defer t.Stop()
	var notBefore time.Time
	for k.d.s.pace.rest(ctx, t, checkpointPoll, idleRest, false) {
		k.d.markNow()
		if uint64(k.d.log.End())-k.from.Load() < uint64(k.d.s.cfg.CheckpointBytes) || time.Now().Before(notBefore) {
			continue
		}
		if err := k.run(ctx); err != nil && ctx.Err() == nil {
			k.failed.Add(1)
			notBefore = time.Now().Add(checkpointRest)
			k.d.s.log.Warn("checkpoint given up, the log stays", "error", err)
		}
	}
}

// run makes a checkpoint and cuts the log before it. After an error there is no new
// checkpoint, and the log is not cut.
func (k *checkpoints) run(ctx context.Context) error {
	d := k.d
	k.mu.Lock()
	defer k.mu.Unlock()
	defer func() { k.rows.Store(0); k.total.Store(0) }()
	start := time.Now()
	d.s.catalog.versions.Lock() // a version that is in the log is in use
	c, from := d.s.catalog.Load(), d.log.End()
	d.s.catalog.versions.Unlock()
	running, steps := d.s.outcomes.running(), k.exportSteps()
	info := image.Info{Identity: d.dir.Bytes(), Log: uint64(from)}
	for _, p := range d.s.parts.here {
		p.mu.Lock() // so that the tick covers all that the partition has logged
		info.Tick = max(info.Tick, p.ticks.present())
		p.unlock()
	}
	settled := d.settling(ctx)
	defer settled.cancel()
	dir, err := image.MakeDir(d.s.cfg.FS, d.s.cfg.Dir, CheckpointDir)
	if err != nil {
		return err
	}
	w, err := image.Create(d.s.cfg.FS, dir, info, image.Options{BytesPerSecond: d.s.cfg.CheckpointRate})
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c)
	if err == nil {
		err = w.Blob(ctx, blobCatalog, 0, raw)
	}
	if err == nil {
		err = w.Blob(ctx, blobEpoch, 0, binary.LittleEndian.AppendUint32(nil, d.s.cfg.hosted.Epoch))
	}
	if err == nil {
		err = writeSteps(ctx, w, steps)
	}
	if err == nil {
		err = k.writeRows(ctx, w, len(c.Indexes))
	}
	if err == nil {
		err = k.writeRest(ctx, w, running)
	}
	if err == nil {
		err = d.log.Wait(ctx, d.log.End())
	}
	if err == nil {
		// A log that fails leaves sessions in doubt, even of commits that it makes
		// durable after all. Only the log has the outcomes of those.
		err = d.log.Err()
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	bytes, rows, err := w.Finish(ctx)
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	k.from.Store(uint64(from))
	k.done.Add(1)
	settled.cut(&d.start, info.Tick)
	d.s.log.Info("checkpoint", "log", uint64(from), "rows", rows, "bytes", bytes, "took", time.Since(start))
	if err := errors.Join(d.cut(from), image.Clean(d.s.cfg.FS, dir, uint64(from))); err != nil {
		d.s.log.Warn("the log and checkpoints before the newest one could not be removed", "error", err)
	}
	return nil
}

// writeRows writes the rows of the first indexes of all partitions. A change that was
// logged before the checkpoint began has been applied when its executor is free.
func (k *checkpoints) writeRows(ctx context.Context, w *image.Writer, indexes int) error {
	for _, p := range k.d.s.parts.here {
		for id := range indexes {
			k.total.Add(p.index(id).Stats().Rows)
		}
	}
	add := func(e *index.Entry) {
		w.Row(e)
		k.rows.Add(1)
	}
	for _, p := range k.d.s.parts.here {
		for id := range indexes {
			ix := p.has.Load().indexes[id]
			if err := w.Index(ctx, p.id, id, ix.def.Strings); err != nil {
				return err
			}
			var at index.Place
			for more := true; more; {
				p.mu.Lock()
				more = ix.Visit(&at, visitWords, add)
				p.unlock()
				if err := w.Flush(ctx); err != nil {
					return err
				}
				runtime.Gosched()
			}
		}
	}
	return nil
}

// blobPart is the size in bytes from which on a new blob begins.
const blobPart = 64 << 10

// exportSteps returns the records of the commit protocol that a recovery needs besides
// the rows as they are after the call and the log from where it ended before the call.
//
// Steps that ran at the position may have logged what their machines did not know yet:
// the commit of a last agent. What machines have decided when they are exported may not
// have been applied. So it waits for running steps twice: before the export, so that
// the machines know them, and after it, so that the rows have them.
func (k *checkpoints) exportSteps() (all []redo.Record) {
	k.d.s.parts.settleSteps()
	for _, p := range k.d.s.parts.here {
		all = append(all, p.protocol.export(p.id, runtime.Gosched)...)
	}
	k.d.s.parts.settleSteps()
	return all
}

// writeSteps writes what exportSteps has returned.
func writeSteps(ctx context.Context, w *image.Writer, steps []redo.Record) error {
	var b []byte
	for i := range steps {
		part := steps[i].Partition
		b = steps[i].AppendSized(b)
		if len(b) < blobPart && i+1 < len(steps) && steps[i+1].Partition == part {
			continue
		}
		if err := w.Blob(ctx, blobSteps, part, b); err != nil {
			return err
		}
		b = b[:0]
	}
	return nil
}

// writeRest writes what is neither rows nor steps. The transactions of sessions that
// ran when the checkpoint began may be in the log before it, so it first waits for
// their outcomes. The steps, or the log after the checkpoint, tell which are in doubt.
func (k *checkpoints) writeRest(ctx context.Context, w *image.Writer, running []wire.ID) error {
	for began := time.Now(); !k.ended(running); {
		if time.Since(began) > settleMax {
			return errUnsettled
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	parts, forgot := k.d.s.outcomes.export()
	for _, b := range parts {
		if err := w.Blob(ctx, blobOutcomes, 0, b); err != nil {
			return err
		}
	}
	if forgot {
		if err := w.Blob(ctx, blobForgot, 0, nil); err != nil {
			return err
		}
	}
	for _, p := range k.d.s.parts.here {
		p.mu.Lock()
		sealed, debts := p.sealed, len(p.records.debts)
		p.unlock()
		if debts > 0 { // a commit has been applied and is not in the log
			return wal.ErrNoSpace
		}
		if sealed {
			if err := w.Blob(ctx, blobSealed, p.id, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// running returns the transactions of sessions that have not ended.
func (o *outcomes) running() (ids []wire.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for client, f := range o.fates {
		if !f.done && f.seq != 0 {
			ids = append(ids, wire.ID{Client: client, Seq: f.seq})
		}
	}
	return ids
}

// ended reports whether each of the transactions has ended, or is in doubt.
func (k *checkpoints) ended(ids []wire.ID) bool {
	left := k.d.s.outcomes.unended(ids)
	if len(left) == 0 {
		return true
	}
	doubts := map[wire.ID]struct{}{}
	for _, p := range k.d.s.parts.here {
		p.protocol.sessionsInDoubt(doubts)
	}
	return !slices.ContainsFunc(left, func(id wire.ID) bool { _, ok := doubts[id]; return !ok })
}

// unended returns those of the transactions that are still running.
func (o *outcomes) unended(ids []wire.ID) (left []wire.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if f := o.fates[id.Client]; f != nil && f.seq == id.Seq && !f.done {
			left = append(left, id)
		}
	}
	return left
}

// export returns the commits that are remembered, in parts, and whether others
// were forgotten although their sessions may still ask.
func (o *outcomes) export() (parts [][]byte, forgot bool) {
	o.mu.Lock()
	clients := slices.Collect(maps.Keys(o.fates))
	o.mu.Unlock()
	slices.Sort(clients) // so that a simulation can be repeated; commits go on meanwhile
	o.mu.Lock()
	defer o.mu.Unlock()
	var b []byte
	for _, client := range clients {
		f := o.fates[client]
		if f == nil || !f.done || f.closed || len(f.resp) == 0 || wire.Code(f.resp[0]) != wire.OK && wire.Code(f.resp[0]) != wire.ResultLost {
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, client)
		b = binary.LittleEndian.AppendUint64(b, f.seq)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.resp)))
		if b = append(b, f.resp...); len(b) >= blobPart {
			parts, b = append(parts, b), nil
		}
	}
	if len(b) > 0 {
		parts = append(parts, b)
	}
	return parts, o.forgotten.mustReport()
}

// restoreForgotten remembers that sessions were forgotten.
func (o *outcomes) restoreForgotten() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgotten.former = true
}

// readOutcomes restores a part of what export returned.
func (o *outcomes) readOutcomes(b []byte) error {
	for len(b) > 0 {
		if len(b) < 20 || uint64(len(b)-20) < uint64(binary.LittleEndian.Uint32(b[16:])) {
			return errors.New("malformed outcomes of sessions")
		}
		id := wire.ID{Client: binary.LittleEndian.Uint64(b), Seq: binary.LittleEndian.Uint64(b[8:])}
		n := 20 + int(binary.LittleEndian.Uint32(b[16:]))
		o.restore(id, b[20:n])
		b = b[n:]
	}
	return nil
}

// checkpoint fills the empty partitions from the newest checkpoint, if there is
// one. It returns the position from which the log is to be replayed.
func (r *recovery) checkpoint() (wal.LSN, error) {
	s, d := r.s, r.s.durable
	dir := s.cfg.FS.PathJoin(s.cfg.Dir, CheckpointDir)
	logs, err := image.List(s.cfg.FS, dir)
	switch first := d.log.First(); {
	case err != nil && !oserror.IsNotExist(err):
		return 0, err
	case len(logs) == 0 && first > 0:
		return 0, fmt.Errorf("%w: %s: the log begins at %d, and there is no checkpoint", ErrRecovery, s.cfg.Dir, first)
	case len(logs) == 0:
		return 0, nil
	case uint64(first) > logs[0]:
		return 0, fmt.Errorf("%w: %s: the log begins at %d, after the newest checkpoint at %d", ErrRecovery, s.cfg.Dir, first, logs[0])
	}
	path := s.cfg.FS.PathJoin(dir, image.Name(logs[0]))
	f, err := image.Open(s.cfg.FS, path)
	if err != nil {
		return 0, err
	}
	// A process that was killed may not have made the name durable, and the log before
	// it is cut later.
	if err := datadir.SyncDir(s.cfg.FS, dir); err != nil {
		return 0, errors.Join(err, f.Close())
	}
	if f.Identity != d.dir.Bytes() || f.Log != logs[0] {
		err = fmt.Errorf("%w: %s has identity %x and position %d, want %x and %d",
			datadir.ErrForeign, path, f.Identity, f.Log, d.dir.Bytes(), logs[0])
	} else if err = r.restore(f); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	r.tick, r.start = max(r.tick, f.Tick), f.Tick
	d.checkpoints.from.Store(f.Log)
	return wal.LSN(f.Log), errors.Join(err, f.Close())
}

func (r *recovery) restore(f *image.File) error {
	start := time.Now()
	if err := f.Blobs(blobEpoch, func(_ placement.Partition, b []byte) error {
		if len(b) != 4 {
			return fmt.Errorf("%w: an epoch of %d bytes", ErrRecovery, len(b))
		}
		return r.checkServed(binary.LittleEndian.Uint32(b))
	}); err != nil {
		return err
	}
	if err := f.Blobs(blobCatalog, func(_ placement.Partition, b []byte) error { return r.catalog(b) }); err != nil {
		return err
	}
	err := f.Blobs(blobSealed, func(id placement.Partition, _ []byte) error {
		p, err := r.partition(id)
		if err == nil {
			p.sealed = true
		}
		return err
	})
	if err == nil { // before the outcomes, which may be later
		err = f.Blobs(blobSteps, r.steps)
	}
	for _, d := range r.doubts {
		d.before = maps.Clone(d.shares)
	}
	if err == nil {
		err = f.Blobs(blobOutcomes, func(_ placement.Partition, b []byte) error { return r.s.outcomes.readOutcomes(b) })
	}
	if err == nil {
		err = f.Blobs(blobForgot, func(placement.Partition, []byte) error { r.s.outcomes.restoreForgotten(); return nil })
	}
	if err == nil {
		err = r.restoreRows(f)
	}
	r.got.CheckpointRows, r.got.Checkpoint = f.Rows, time.Since(start)
	return err
}

// restoreRows fills all partitions at once.
func (r *recovery) restoreRows(f *image.File) error {
	r.phase(phaseCheckpoint, f.Rows)
	byPartition := map[placement.Partition][]image.Index{}
	for _, ix := range f.Indexes {
		byPartition[ix.Partition] = append(byPartition[ix.Partition], ix)
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(byPartition))
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		list := byPartition[p]
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			for _, ix := range list {
				if err := r.restoreIndex(f, ix); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (r *recovery) restoreIndex(f *image.File, ix image.Index) error {
	p, err := r.partition(ix.Partition)
	if err != nil {
		return err
	}
	has := p.has.Load().indexes
	if ix.Index >= len(has) || has[ix.Index].def.Strings != ix.Strings {
		return fmt.Errorf("%w: partition %d has no index %d with such keys", ErrRecovery, p.id, ix.Index)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	to := has[ix.Index]
	to.Expect(ix.Rows)
	const step = 1 << 10
	rows := 0
	return f.Read(ix.Partition, ix.Index, func(e *index.Entry) error {
		if rows++; rows%step == 0 {
			r.done.Add(step)
		}
		p.arena.CoverLate(e.Header.CSN())
		if err := to.Restore(e.Key, e.Row, e.Header); err != nil {
			return fmt.Errorf("%w: partition %d: %w", ErrRecovery, p.id, to.def.Concerns(err, keyOf(to.def, e.Key)))
		}
		return nil
	})
}
