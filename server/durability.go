package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// Durability is what must hold before a commit is acknowledged.
type Durability uint8

// Policies.
const (
	// Memory: a commit is acknowledged when it is applied. The data is lost with the
	// process.
	Memory Durability = iota
	// Disk: a commit is acknowledged when it is in the log on the server's disk.
	Disk
)

var durabilities = [...]string{"memory", "disk"}

func (d Durability) String() string {
	if int(d) < len(durabilities) {
		return durabilities[d]
	}
	return fmt.Sprintf("durability %d", d)
}

// durable is the log of a server, and what waits for it. A change is in the log before
// it is visible. An answer that could reveal it waits until the log is durable up to
// it, here and at all copies in sync. Partitions go on meanwhile.
type durable struct {
	s   *Server
	dir *datadir.Dir
	log *wal.Log

	mu     sync.Mutex
	held   []answer // in the order of their positions
	spare  []answer
	stop   bool
	failed atomic.Bool
	broken chan struct{} // closed when the log has failed
	wake   chan struct{} // has room for one
	done   chan struct{} // closed when release has returned

	recovered wal.LSN     // end of what was recovered and is not known to be at all copies in sync, 0 if nothing
	releases  bool        // release has been started
	passing   sync.Mutex  // held by pass
	suspended atomic.Bool // see Suspend
	ending    atomic.Bool // see noteLastTick

	checkpoints checkpoints
	backups     backups
	marks       marks
	start       logStart
	group       *group     // of this server's log; nil: it can have no copies
	copies      keptCopies // of the logs of other servers
}

// LogDir is the name of the directory of the log in a server's data directory.
const LogDir = "log"

// newDurable opens the data directory and the log. It reads no records, and begins no
// epoch.
func newDurable(s *Server) (d *durable, err error) {
	fs := s.cfg.FS
	d = &durable{
		s: s, dir: s.cfg.hosted.Opened, backups: backups{of: map[uint64]*backup{}}, wake: make(chan struct{}, 1), done: make(chan struct{}), broken: make(chan struct{}),
		copies: keptCopies{ctx: s.workers.ctx, log: s.log, fs: fs, dir: s.cfg.Dir, segmentBytes: s.cfg.SegmentBytes, host: s.cfg.host()},
	}
	d.checkpoints.d = d
	if d.dir == nil {
		if err := s.cfg.notReplaced(); err != nil {
			return nil, err
		}
		if d.dir, err = s.cfg.openDir(datadir.Open); err != nil {
			return nil, err
		}
	}
	if err := s.cfg.prepareCatalog(d.dir); err != nil {
		return nil, errors.Join(err, d.dir.Close())
	}
	if d.log, err = openLog(d.dir, wal.Options{FS: fs, SegmentBytes: s.cfg.SegmentBytes, Released: d.durableTo, Failed: d.fail}); err != nil {
		return nil, errors.Join(err, d.dir.Close())
	}
	s.cfg.hosted.Incarnation, s.cfg.hosted.Epoch = d.dir.Incarnation, d.dir.Epoch
	return d, nil
}

// openLog opens the log of a directory. A server makes the log before its first epoch,
// and begins the epoch before it writes the first record. So a directory with an epoch
// and no log, or with records and no epoch, has lost data: openLog fails with ErrLost
// before it changes anything.
func openLog(dir *datadir.Dir, o wal.Options) (*wal.Log, error) {
	o.Dir, o.Identity, o.Exists = o.FS.PathJoin(dir.Path(), LogDir), dir.Bytes(), dir.Served
	if err := checkUnserved(o.FS, dir); err != nil {
		return nil, err
	}
	log, err := wal.Open(o)
	if errors.Is(err, wal.ErrMissing) {
		err = fmt.Errorf("%w: %s was served before (epoch %d), and its log is missing: %s", ErrLost, dir.Path(), dir.Epoch-1, whenLost)
	}
	return log, err
}

// whenLost tells the operator what to do.
const whenLost = "restore a backup, or remove the directory so that a copy in sync takes its place"

// checkUnserved returns an ErrLost if a directory that says that it was never served has
// a record or a checkpoint.
func checkUnserved(fs vfs.FS, dir *datadir.Dir) error {
	if dir.Served || dir.New {
		return nil
	}
	logs, err := image.List(fs, fs.PathJoin(dir.Path(), CheckpointDir))
	if err != nil && !oserror.IsNotExist(err) {
		return err
	}
	served := len(logs) > 0
	at := fs.PathJoin(dir.Path(), LogDir)
	if _, err := fs.Stat(at); err == nil {
		log, err := wal.Open(wal.Options{FS: fs, Dir: at, Identity: dir.Bytes(), ReadOnly: true})
		if err != nil {
			return err
		}
		served = served || log.End() > 0
		if err := log.Close(); err != nil {
			return err
		}
	} else if !oserror.IsNotExist(err) {
		return err
	}
	if served {
		return fmt.Errorf("%w: %s was served before, and its file EPOCH is missing: %s", ErrLost, dir.Path(), whenLost)
	}
	return nil
}

// openDir opens the data directory with the given function, which makes it if there is
// none.
func (c *Config) openDir(open func(vfs.FS, string, datadir.Identity) (*datadir.Dir, error)) (*datadir.Dir, error) {
	if !c.hosted.Restore {
		if err := datadir.Finished(c.FS, filepath.Dir(filepath.Clean(c.Dir))); err != nil {
			return nil, err
		}
	}
	if c.Catalog == nil {
		if _, ok, err := datadir.Read(c.FS, c.Dir); err != nil || !ok {
			return nil, errors.Join(err, fmt.Errorf("%w: no catalogue, and %s has no data", ErrConfig, c.Dir))
		}
	}
	catalog, err := json.Marshal(c.Catalog)
	if err != nil {
		return nil, err
	}
	return open(c.FS, c.Dir, datadir.Identity{
		Incarnation: c.hosted.Incarnation, Server: placement.Server(c.Index), Servers: len(c.Addrs), Partitions: c.Partitions, Catalog: catalog,
	})
}

// OpenDir opens the data directory of a server whose place is in a membership
// store, for Config.Opened. The length of Addrs, and Partitions, must be set.
func OpenDir(c Config) (*datadir.Dir, error) {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	return c.openDir(datadir.OpenPlaced)
}

// LogEnd returns the end of the log of a directory that OpenDir has opened, 0 if it
// was never served. It changes nothing. It fails with ErrLost if the directory has lost
// its log, or the file that says that it was served.
func LogEnd(c Config, d *datadir.Dir) (uint64, error) {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if !d.Served {
		return 0, checkUnserved(c.FS, d)
	}
	log, err := openLog(d, wal.Options{FS: c.FS, ReadOnly: true})
	if err != nil {
		return 0, err
	}
	return uint64(log.End()), log.Close()
}

// DurableTo returns the position up to which the log is durable, here and at all copies
// in sync, 0 in memory. A server that starts again on its directory, or on a copy in
// sync, finds its log up to there, or does not start.
func (s *Server) DurableTo() uint64 {
	if s.durable == nil {
		return 0
	}
	return uint64(s.durable.safe())
}

// LogFailure returns an error if the log cannot be written: a write or a sync has
// failed, or one has been under way for longer than patience. It returns nil otherwise.
// A server whose log has failed is of no use until it is started again; one whose disk
// does not answer may go on later.
func (s *Server) LogFailure(patience time.Duration) error {
	d := s.durable
	switch {
	case d == nil:
	case d.failed.Load():
		return errLogFailed
	default:
		if stalled := d.log.Stalled(); stalled > patience {
			return fmt.Errorf("%w: a write has been under way for %v", errLogStalled, stalled.Round(time.Millisecond))
		}
	}
	return nil
}

// LogFailed returns a channel that is closed when a write or a sync of the log has
// failed, nil if the server has no log.
func (s *Server) LogFailed() <-chan struct{} {
	if s.durable == nil {
		return nil
	}
	return s.durable.broken
}

var (
	errLogFailed  = errors.New("server: the log cannot be written any more")
	errLogStalled = errors.New("server: the disk of the log does not answer")
)

func (d *durable) kick() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// fail is called once, when the log can no longer be written. Records that are not
// durable may be lost: they are not acknowledged, and no new ones are accepted.
func (d *durable) fail(err error) {
	d.failed.Store(true)
	close(d.broken)
	d.s.log.Error("the log has failed: partitions are fenced", "error", err)
	d.kick()
}

// close ends the release of answers and closes the log. Nothing may be appended
// any more.
func (d *durable) close() error {
	err := d.log.Close()
	d.mu.Lock()
	d.stop = true
	d.mu.Unlock()
	d.kick()
	if d.releases {
		<-d.done
	}
	return errors.Join(err, d.copies.close(), d.dir.Close())
}

// safe returns the position up to which the log is durable here and at all copies in
// sync: changes up to there may be acknowledged.
func (d *durable) safe() wal.LSN {
	if d.group == nil {
		return d.log.Durable()
	}
	return wal.LSN(d.group.horizon.Load())
}

// wait waits until the log is safe up to a position and the server has its place after
// that: else another process may go on with a copy of the log that ends before. It
// fails if that will not happen.
func (d *durable) wait(ctx context.Context, at wal.LSN) error {
	if err := d.log.Wait(ctx, at); err != nil || d.safe() >= at && d.mayAnswer() {
		return err
	}
	done := make(chan bool, 1)
	d.hold(answer{at: at, do: func(durable bool) { done <- durable }})
	select {
	case durable := <-done:
		if !durable {
			return wal.ErrFailed
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitRecovered waits until all copies in sync have what the server has recovered: what
// rests on it may be told then. It fails if that will not happen.
func (d *durable) awaitRecovered(ctx context.Context) error {
	if d == nil || d.safe() >= d.recovered {
		return nil
	}
	return d.wait(ctx, d.recovered)
}

// durableTo is called by the log's writer when more of the log is durable. It releases
// the answers itself, because a goroutine that it woke might wait for a processor until
// the writer has written the next group. It leaves a lone answer to that goroutine if
// the writer has nothing to write: the goroutine then runs at once, and leaves the
// runtime a thread that takes the next record sooner. Nothing here waits for a peer, a
// disk or an executor.
func (d *durable) durableTo(to wal.LSN) {
	if d.group != nil {
		d.group.durable(to)
	}
	d.mu.Lock()
	held := len(d.held)
	d.mu.Unlock()
	if d.failed.Load() || held <= 1 && d.log.End() == to {
		d.kick()
		return
	}
	d.pass()
}

// release calls pass whenever it is woken, until the server stops. After the log has
// failed it also fences the partitions and gives up their debts.
func (d *durable) release() {
	defer close(d.done)
	for {
		failed, stop := d.pass()
		if failed {
			d.s.parts.fence()
			d.defaultOnDebts()
		}
		if stop {
			return
		}
		<-d.wake
	}
}

// pass raises the horizons and releases the answers that are durable, with one wakeup
// for all peers. If the log has failed or ended, all other answers say that the outcome
// is in doubt.
func (d *durable) pass() (failed, stop bool) {
	d.passing.Lock()
	defer d.passing.Unlock()
	failed = d.failed.Load() // before what is durable: what is held afterwards is not released as durable
	to := d.safe()
	may := d.mayAnswer()
	for _, p := range d.s.parts.here {
		if may {
			p.records.horizon.raise(p.control, to)
		}
	}
	d.mu.Lock()
	// What is held from now on stays held. If the process has stopped since the last look, and
	// another one has its place, what came in between rests on old memory.
	may = may && d.mayAnswer()
	n := 0
	for may && n < len(d.held) && d.held[n].at <= to {
		n++
	}
	stop = d.stop
	if !may && !stop {
		time.AfterFunc(placePause, d.kick)
	}
	ready := append(d.spare[:0], d.held[:n]...)
	rest := copy(d.held, d.held[n:])
	clear(d.held[rest:])
	d.held = d.held[:rest]
	var lost []answer
	if failed || stop {
		lost, d.held = d.held, nil
	}
	d.mu.Unlock()
	if c, ok := d.s.ep.(rdma.Corker); ok && n > 1 {
		c.Cork()
		defer c.Uncork()
	}
	for i := range ready {
		d.s.answers.deliver(&ready[i], true)
	}
	clear(ready)
	d.spare = ready
	for i := range lost {
		d.s.answers.deliver(&lost[i], false)
	}
	return failed, stop
}

// end returns the end of the log, 0 if there is none. All that was read so far is
// durable when the log is durable up to there.
func (d *durable) end() wal.LSN {
	if d == nil {
		return 0
	}
	return d.log.End()
}

// origin is the transaction of a session whose commit is being carried out. It is zero
// if the session is not one of this server.
type origin struct {
	id     wire.ID
	result []byte
	step   *twophase.Record // of the commit of a last agent
	aside  *aside           // of a coordinator without a share
}

// note appends a record to the log, and returns its end. room is what was set aside for
// it, 0 if nothing. The caller holds the executors of all partitions that the record
// concerns, and publishes nothing before note has returned.
func (d *durable) note(r *redo.Record, room wal.LSN, at ...*partition) (lsn wal.LSN, v verdict) {
	first := at[0]
	first.records.encoded = r.Append(first.records.encoded[:0])
	var err error
	if room > 0 {
		// The partition's debts arose after the share was locked, and so concern other rows.
		lsn, err = d.log.AppendAside(first.records.encoded, room)
	} else if err = d.payAll(at); err == nil {
		lsn, err = d.log.AppendWait(first.records.encoded)
	}
	if err != nil {
		return 0, logVerdict(err)
	}
	for _, p := range at {
		p.records.logged = lsn
	}
	return lsn, verdict{}
}

// noteTick appends a tick that is ahead of the server's clock, and returns the end of
// the record. It waits for room if the disk is behind.
func (d *durable) noteTick(t clock.Tick) (wal.LSN, error) {
	r := redo.Record{Kind: redo.Started, Epoch: d.s.cfg.hosted.Epoch, Tick: t}
	return d.log.AppendWait(r.Append(nil))
}

// lastTickTime bounds how long a server that stops waits until its log and its copies have
// its last tick. A copy that does not answer keeps nothing else waiting.
const lastTickTime = 250 * time.Millisecond

// noteLastTick fences the partitions of a server that stops, and logs a tick that is no
// lower than any that they have published. Readers may have taken a snapshot of it. The
// process that opens the log next, here or at a copy, may have a clock that is behind; it
// begins above all ticks of the log.
func (d *durable) noteLastTick() {
	d.ending.Store(true)
	d.s.parts.fence()
	ctx, cancel := context.WithTimeout(d.s.workers.ctx, lastTickTime)
	defer cancel()
	r := redo.Record{Kind: redo.Started, Epoch: d.s.cfg.hosted.Epoch, Tick: d.s.clocks.now()}
	at, err := d.log.Append(r.Append(nil))
	for errors.Is(err, wal.ErrBehind) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		at, err = d.log.Append(r.Append(nil))
	}
	if err == nil && d.group != nil && d.mayAnswer() { // else the log has it when it is closed
		err = d.wait(ctx, at)
	}
	if err != nil && !d.failed.Load() {
		d.s.log.Warn("the last tick is not in all copies of the log", "tick", uint64(r.Tick), "error", err)
	}
}

// logVerdict returns the answer to a write that the log does not take.
func logVerdict(err error) verdict {
	switch {
	case errors.Is(err, wal.ErrNoSpace):
		return verdict{code: wire.NoSpace, text: err.Error()}
	case errors.Is(err, wal.ErrTooLarge):
		return verdict{code: wire.TooLarge, text: err.Error()}
	}
	return verdict{code: wire.Unavailable, text: err.Error()}
}

// noteCommit appends the record of a commit of the given parts, in one step, and lowers
// the horizons: from then on the commit may be visible without being durable.
func (d *durable) noteCommit(o origin, parts []redo.Part, at ...*partition) verdict {
	if d == nil {
		return verdict{}
	}
	r := redo.Record{Kind: redo.Commit, Session: o.id, Result: o.result, Parts: parts}
	if o.step != nil {
		r.Step, r.Partition = *o.step, at[0].id
		r.Step.Tick = at[0].ticks.own.Tick()
	}
	lsn, v := d.note(&r, 0, at...)
	if v.ok() {
		for i, p := range at {
			p.records.pend(lsn, parts[i].CSN)
		}
	}
	return v
}
