package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of hosts that keep copies.
var (
	// ErrCopyGiven reports a copy that takes no steps: YieldCopy gave it away, so that its
	// data server can be opened here.
	ErrCopyGiven = errors.New("server: the copy was given away, to open its data server")
	// ErrNoCopy reports that there is no complete copy of a data server.
	ErrNoCopy = errors.New("server: no complete copy")
	// ErrSameHost reports that a host keeps no copies of a data server which runs there.
	ErrSameHost = errors.New("server: the data server runs on the host that would keep its copy")
	// ErrOtherHost reports a step for a copy that another host is to keep.
	ErrOtherHost = errors.New("server: another host is to keep the copy")
)

// keptCopies are the copies of data servers' logs that a host keeps.
type keptCopies struct {
	ctx          context.Context // of the steps
	log          *slog.Logger
	fs           vfs.FS
	dir          string // of the host; the copies are in CopiesDir there
	segmentBytes int64
	host         int

	mu     sync.Mutex
	of     map[placement.Server]*keptCopy // by home
	closed bool
}

// keptCopy is the copy of one server's data directory. It takes one step at a
// time.
type keptCopy struct {
	k    *keptCopies
	home placement.Server
	dir  string

	heard atomic.Int64 // by clock.Now: when a step of the home last came; 0: never

	mu      sync.Mutex
	rule    replica.Copy
	session uint64 // of the home in this epoch; a step of an earlier one was delayed
	reset   bool   // in this session
	closed  bool
	begun   bool // a session has begun since the files were opened
	given   bool // see yield
	opened  bool
	id      datadir.Identity // of the home
	info    datadir.Copy
	log     *wal.Log // nil: the copy is not complete
	base    uint64   // position of its checkpoint
	part    []byte   // of a frame, after the end of the log
	// readers counts those who read the checkpoint and the log: neither is replaced or
	// cut.
	readers  int
	openings int // number of the present opening of the files

	incoming struct { // a checkpoint
		file  vfs.File // nil: none, or all of it has come
		log   uint64
		size  uint64
		ready chan error // gets the result of finish; nil: it has not begun. Has room for it
	}
}

// handleCopy takes a step of the copy of another server's log.
func (s *Server) handleCopy(r *rdma.Request, d *wire.Decoder) {
	if s.durable == nil {
		s.answers.refuse(r, "this data server keeps data in memory only, and so no copies of logs")
		return
	}
	m, ok := copyStep(d, len(s.cfg.Addrs))
	if !ok || m.Server == s.parts.self {
		s.answers.refuse(r, "malformed step of a copy")
		return
	}
	s.workers.background(func() { s.answers.reply(r, s.durable.copies.answer(m)) })
}

// copyStep decodes a step of a copy. It returns false if the step is malformed, or if
// the cluster has no such server.
func copyStep(d *wire.Decoder, servers int) (*wire.CopyStep, bool) {
	m := &wire.CopyStep{}
	if m.Decode(d) != nil || int(m.Server) >= servers {
		return nil, false
	}
	m.Bytes = append([]byte(nil), m.Bytes...) // it outlives the request
	return m, true
}

// answer carries out a step, and returns the encoded answer.
func (k *keptCopies) answer(m *wire.CopyStep) []byte {
	state, err := k.take(m)
	if err != nil {
		return verdict{code: wire.Bad, text: err.Error()}.append(nil)
	}
	return state.Append([]byte{byte(wire.OK)})
}

// take carries out a step.
func (k *keptCopies) take(m *wire.CopyStep) (wire.CopyState, error) {
	switch {
	case m.Host == k.host:
		return wire.CopyState{}, fmt.Errorf("%w: data server %d, host %d", ErrSameHost, m.Server, k.host)
	case m.To >= 0 && m.To != k.host:
		return wire.CopyState{}, fmt.Errorf("%w: of data server %d host %d, and this is host %d", ErrOtherHost, m.Server, m.To, k.host)
	}
	c, err := k.get(m.Server)
	if err != nil {
		return wire.CopyState{}, err
	}
	return c.step(k.ctx, m)
}

// get returns the copy of a home. It may not be complete.
func (k *keptCopies) get(home placement.Server) (*keptCopy, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, wal.ErrClosed
	}
	if k.of == nil {
		k.of = map[placement.Server]*keptCopy{}
	}
	if k.of[home] == nil {
		k.of[home] = &keptCopy{k: k, home: home, dir: CopyDir(k.fs, k.dir, home)}
	}
	return k.of[home], nil
}

// close closes the logs. No step is under way.
func (k *keptCopies) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	var errs []error
	for _, home := range slices.Sorted(maps.Keys(k.of)) {
		c := k.of[home]
		c.mu.Lock()
		c.closed = true
		errs = append(errs, c.closeFiles())
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}

// yield gives a complete copy away: it waits for the step under way, and closes the
// files. No later step touches the directory, which is then the caller's, until
// unyield. After an error the copy goes on.
func (k *keptCopies) yield(home placement.Server) (dir string, made datadir.Copy, err error) {
	c, err := k.get(home)
	if err != nil {
		return "", made, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return "", made, wal.ErrClosed
	case c.given:
		return "", made, fmt.Errorf("%w: %s", ErrCopyGiven, c.dir)
	}
	if err := c.open(); err != nil {
		return "", made, err
	}
	if c.log == nil {
		return "", made, fmt.Errorf("%w of data server %d in %s", ErrNoCopy, home, c.dir)
	}
	made = c.info
	err = c.closeFiles()
	if rerr := k.fs.Remove(k.fs.PathJoin(c.dir, baseFile)); rerr != nil && !oserror.IsNotExist(rerr) {
		err = errors.Join(err, rerr)
	}
	c.forget()
	if err != nil {
		return "", made, err
	}
	c.given = true
	k.log.Info("a copy is given away", "home", home, "dir", c.dir, "since", made.Since)
	return c.dir, made, nil
}

// unyield makes a copy that was given away take steps again. It begins with what is in
// its directory then, perhaps nothing.
func (k *keptCopies) unyield(home placement.Server) {
	c, err := k.get(home)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.given {
		c.given = false
		k.log.Info("a copy takes steps again", "home", home, "dir", c.dir)
	}
}

// forget forgets what the directory had. It keeps the epoch and the session of the
// home, by which delayed steps are recognised. The files are closed.
func (c *keptCopy) forget() {
	c.opened, c.begun, c.id, c.info, c.base = false, false, datadir.Identity{}, datadir.Copy{}, 0
}

// closeFiles closes the log and the file of an incoming checkpoint.
func (c *keptCopy) closeFiles() (err error) {
	c.openings++
	c.dropIncoming()
	if c.log != nil {
		err = c.log.Close()
		c.log = nil
	}
	c.part = nil
	return err
}

// YieldCopy gives the copy of a data server's directory to the caller, which makes it
// the directory of that server. It closes the copy's log, and no later step of the home
// is taken before ResumeCopy. It returns the directory, and what the copy knows of
// its home's epochs. It fails with ErrNoCopy if there is no complete copy. After an
// error the copy goes on.
func (s *Server) YieldCopy(home placement.Server) (dir string, made datadir.Copy, err error) {
	if s.durable == nil {
		return "", made, fmt.Errorf("%w of data server %d: this one keeps data in memory only", ErrNoCopy, home)
	}
	return s.durable.copies.yield(home)
}

// ResumeCopy ends what YieldCopy began: the copy takes steps of its home again.
// The directory may be gone by then.
func (s *Server) ResumeCopy(home placement.Server) {
	if s.durable != nil {
		s.durable.copies.unyield(home)
	}
}

// CopyDir returns the directory of the copy of a home's data in dir, the directory of
// the server that keeps it.
func CopyDir(fs vfs.FS, dir string, home placement.Server) string {
	return fs.PathJoin(dir, CopiesDir, fmt.Sprintf("server-%d", home))
}

var errDelayed = errors.New("the step is of an earlier session")

// step carries out a step. It returns the state of the copy when its log is durable.
func (c *keptCopy) step(ctx context.Context, m *wire.CopyStep) (state wire.CopyState, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return state, wal.ErrClosed
	case c.given:
		return state, fmt.Errorf("%w: data server %d", ErrCopyGiven, c.home)
	}
	if err = c.open(); err != nil {
		return state, err
	}
	c.heard.Store(int64(clock.Now()))
	if m.Step == wire.CopyBegin {
		err = c.begin(m)
	} else if !c.begun || replica.Epoch(m.Epoch) != c.rule.Epoch || m.Session != c.session {
		err = errDelayed
	}
	if err != nil {
		return state, err
	}
	switch m.Step {
	case wire.CopyReset:
		err = c.makeEmpty(m)
	case wire.CopyBase:
		err = c.takeBase(m)
	case wire.CopyInstall:
		err = c.install(m)
	case wire.CopyFrames:
		err = c.take(m)
	}
	if err == nil && c.log != nil {
		err = c.log.Wait(ctx, c.log.End())
	}
	if err != nil {
		return state, err
	}
	return c.state(), nil
}

func (c *keptCopy) state() wire.CopyState {
	state := wire.CopyState{There: c.log != nil, Since: c.info.Since, Base: c.base}
	if c.log != nil {
		state.End, state.Durable = uint64(c.log.End())+uint64(len(c.part)), uint64(c.log.Durable())
	}
	return state
}

// open opens the files that there are, if they are not open.
func (c *keptCopy) open() error {
	if c.opened {
		return nil
	}
	fs := c.k.fs
	info, ok, err := datadir.ReadCopy(fs, c.dir)
	if err != nil {
		return err
	}
	if c.info = info; ok {
		if err := datadir.SyncDir(fs, c.dir); err != nil { // a process that was killed may not have come so far
			return err
		}
		c.rule.Epoch = max(c.rule.Epoch, replica.Epoch(info.Epoch))
		id, ok, err := datadir.Read(fs, c.dir)
		if err != nil {
			return err
		}
		if ok {
			c.id = *id
			err := c.openLog(wal.Options{Exists: true})
			if errors.Is(err, wal.ErrMissing) || errors.As(err, new(*wal.CorruptError)) { // it is made anew
				c.k.log.Error("a copy is lost or damaged: it is made anew when it has left the set", "copy_of", c.home, "error", err)
				c.opened = true
				return nil
			}
			if err != nil {
				return err
			}
			logs, err := image.List(fs, fs.PathJoin(c.dir, CheckpointDir))
			if err != nil && !oserror.IsNotExist(err) {
				return err
			}
			if len(logs) > 0 {
				c.base = logs[0]
			}
		}
	}
	c.opened = true
	return nil
}

// openLog opens the log of the copy, which exists or begins at a position.
func (c *keptCopy) openLog(o wal.Options) (err error) {
	fs := c.k.fs
	o.FS, o.Dir, o.SegmentBytes, o.Identity = fs, fs.PathJoin(c.dir, LogDir), c.k.segmentBytes, c.id.Bytes()
	o.Copy, o.MarkDelay = true, -1
	if c.log, err = wal.Open(o); err != nil {
		c.log = nil
		return err
	}
	c.log.Start()
	return nil
}

// begin begins a session of the home. From then on the copy takes nothing from an
// earlier epoch, or from an earlier session, even if the server restarts.
func (c *keptCopy) begin(m *wire.CopyStep) error {
	var id datadir.Identity
	if err := json.Unmarshal(m.Bytes, &id); err != nil || id.Server != c.home {
		return fmt.Errorf("the identity of server %d cannot be read", c.home)
	}
	if c.id.ID != "" && c.id.ID != id.ID {
		return fmt.Errorf("%s is the copy of another directory, %s, and this is %s", c.dir, c.id.ID, id.ID)
	}
	e := replica.Epoch(m.Epoch)
	if e == c.rule.Epoch && m.Session <= c.session {
		if m.Session < c.session || !c.begun {
			return errDelayed
		}
		return nil // repeated
	}
	was := c.rule.Epoch
	if !c.rule.Begin(e) {
		return fmt.Errorf("the copy of server %d takes the log of epoch %d, and this is epoch %d", c.home, c.rule.Epoch, e)
	}
	if m.Epoch != c.info.Epoch || c.id.ID == "" {
		info := datadir.Copy{Epoch: m.Epoch, Since: c.info.Since}
		if err := datadir.WriteCopy(c.k.fs, c.dir, info); err != nil {
			c.rule.Epoch = was
			return err
		}
		c.info = info
	}
	c.id, c.session, c.begun, c.reset, c.part = id, m.Session, true, false, nil
	c.dropIncoming()
	return nil
}

func (c *keptCopy) dropIncoming() {
	in := &c.incoming
	if in.file != nil {
		_ = in.file.Close()
	}
	if in.ready != nil {
		<-in.ready
	}
	in.file, in.log, in.size, in.ready = nil, 0, 0, nil
}

// makeEmpty removes what the copy has, once in a session.
func (c *keptCopy) makeEmpty(m *wire.CopyStep) error {
	if c.reset {
		return nil
	}
	c.openings++
	if c.log != nil {
		_ = c.log.Close() // an error of what is removed
		c.log = nil
	}
	c.base, c.part = 0, nil
	c.info.Since = m.Since
	if err := datadir.EmptyCopy(c.k.fs, c.dir); err != nil {
		return err
	}
	c.reset = true
	return datadir.WriteCopy(c.k.fs, c.dir, c.info)
}

// baseFile is the file of a checkpoint that is not complete.
const baseFile = "base.tmp"

// takeBase takes a piece of a checkpoint.
func (c *keptCopy) takeBase(m *wire.CopyStep) (err error) {
	in := &c.incoming
	if m.At == 0 && (in.file == nil && in.ready == nil || in.log != m.Log) {
		c.dropIncoming()
		if in.file, err = c.k.fs.Create(c.k.fs.PathJoin(c.dir, baseFile), vfs.WriteCategoryUnspecified); err != nil {
			return err
		}
		in.log = m.Log
	}
	switch {
	case in.file == nil && in.ready == nil || in.log != m.Log || m.At > in.size || in.file == nil && m.At == in.size:
		return fmt.Errorf("a piece of the checkpoint at %d from %d on, after %d bytes of that at %d", m.Log, m.At, in.size, in.log)
	case m.At < in.size:
		return nil // repeated
	}
	_, err = in.file.Write(m.Bytes)
	in.size += uint64(len(m.Bytes))
	if err == nil { // the disk gets it in small pieces: a sync of the log waits for what the disk is writing
		_, err = in.file.SyncTo(int64(in.size))
	}
	return err
}

// install replaces the checkpoint of the copy by one that has come completely. A copy
// that was reset is complete with it. Syncing and reading the checkpoint may take long,
// and the copy takes the log meanwhile, because answers wait for it: the home repeats
// the step until the state has the checkpoint.
func (c *keptCopy) install(m *wire.CopyStep) error {
	fs := c.k.fs
	if c.log != nil && (c.base >= m.Log || c.readers > 0) {
		return nil // repeated, or it is too early
	}
	if m.At > 0 {
		if ready, err := c.installBase(m); err != nil || !ready {
			return err
		}
	} else if m.Log > 0 {
		return errors.New("a log that does not begin at 0, and no checkpoint")
	}
	if c.log != nil { // the log has all changes that the checkpoint may have
		c.base = m.Log
		return errors.Join(c.log.Cut(wal.LSN(m.Log)), image.Clean(fs, fs.PathJoin(c.dir, CheckpointDir), m.Log))
	}
	if !c.reset {
		return errors.New("the copy has no log")
	}
	if err := c.openLog(wal.Options{Start: wal.LSN(m.Log)}); err != nil {
		return err
	}
	if err := datadir.CompleteCopy(fs, c.dir, c.id); err != nil {
		// It cannot take the place of its home, and must not pass for one that can.
		err = errors.Join(err, c.log.Close())
		c.log = nil
		return err
	}
	c.base = m.Log
	return nil
}

// installBase starts finish for a checkpoint that has come. ready reports whether
// finish has succeeded.
func (c *keptCopy) installBase(m *wire.CopyStep) (ready bool, err error) {
	in := &c.incoming
	if in.file == nil && in.ready == nil || in.log != m.Log || in.size != m.At {
		return false, fmt.Errorf("the checkpoint at %d has %d bytes, and %d of that at %d are here", m.Log, m.At, in.size, in.log)
	}
	if in.ready == nil {
		file, id, done := in.file, c.id, make(chan error, 1)
		in.file, in.ready = nil, done
		go func() { done <- c.finish(file, m.Log, &id) }()
	}
	select {
	case err = <-in.ready:
		in.ready = nil
		return err == nil, err
	default:
		return false, nil
	}
}

// finish makes the file of a checkpoint durable, verifies it, and gives it its name.
// Then it is the newest of the copy, also after a crash. It holds no lock: steps are
// taken meanwhile, but none that changes the checkpoints.
func (c *keptCopy) finish(file vfs.File, log uint64, id *datadir.Identity) error {
	fs := c.k.fs
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	from := fs.PathJoin(c.dir, baseFile)
	f, err := image.Open(fs, from)
	if err != nil {
		return err
	}
	if f.Identity != id.Bytes() || f.Log != log {
		err = fmt.Errorf("%w: %s is not the checkpoint at %d of server %d", datadir.ErrForeign, from, log, c.home)
	}
	if err = errors.Join(err, f.Verify(), f.Close()); err != nil {
		return err
	}
	dir, err := image.MakeDir(fs, c.dir, CheckpointDir)
	if err != nil {
		return err
	}
	if err := fs.Rename(from, fs.PathJoin(dir, image.Name(log))); err != nil {
		return err
	}
	return datadir.SyncDir(fs, dir)
}

// take appends a piece of the log.
func (c *keptCopy) take(m *wire.CopyStep) error {
	if c.log == nil {
		return errors.New("the copy has no log")
	}
	end := c.log.End()
	c.rule.End = replica.Position(end) + replica.Position(len(c.part))
	if !c.rule.Takes(replica.Epoch(m.Epoch), replica.Position(m.At)) || len(m.Bytes) == 0 {
		return nil // the state says where the next piece must begin
	}
	all := append(c.part, m.Bytes...)
	now, err := c.log.AppendFrames(end, all)
	c.part = nil
	if err != nil {
		return err
	}
	c.part = append([]byte(nil), all[now-end:]...)
	return nil
}
