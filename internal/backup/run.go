package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a backup. Addrs, Dial and Dir are required.
type Options struct {
	// Addrs are those of all data servers, in order.
	Addrs []string
	Dial  func(ctx context.Context, addr string) (rdma.Conn, error)
	// Dir is made if it does not exist, and must be empty.
	Dir string
	FS  vfs.FS // nil means the operating system's
	// Follow goes on with the logs after the backup is complete, until its context
	// ends or the time is over; 0 means no end.
	Follow bool
	For    time.Duration
	// Every is the time between two moves of Last while it follows; 0 means one
	// second.
	Every time.Duration
	// Progress is called now and then, by one goroutine at a time; nil means not.
	Progress func(Progress)
	// Moved is called when the manifest has been written; nil means not.
	Moved func(*Manifest)
}

// closeMax bounds the wait for ticks that transactions in doubt keep open.
const closeMax = time.Minute

// run is a backup under way.
type run struct {
	o        Options
	fs       vfs.FS
	sources  []*source
	manifest Manifest
	written  bool // the manifest
	showMu   sync.Mutex
}

// Run makes a backup of a running cluster. If it follows, the end of ctx ends it
// without an error once the backup is complete. After an error the directory has a
// backup if the returned manifest is not nil, and otherwise nothing.
func Run(ctx context.Context, o Options) (m *Manifest, err error) {
	r := &run{o: o, fs: o.FS}
	if r.fs == nil {
		r.fs = vfs.Default
	}
	lock, err := r.makeDir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, datadir.Unlock(r.fs, o.Dir, lock)) }()
	defer func() {
		for _, s := range r.sources {
			err = errors.Join(err, s.close())
		}
		if err != nil && !r.written {
			err = errors.Join(err, r.removeFiles())
		}
		if r.written {
			m = &r.manifest
		}
	}()
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if err := r.each(ctx, func(s *source) error { return s.fetchBase(ctx, r.fs, o.Dir, r.showRows) }); err != nil {
		return nil, err
	}
	for _, s := range r.sources {
		r.manifest.First = max(r.manifest.First, clock.Tick(s.state.Tick))
	}
	if err := r.move(ctx, r.manifest.First); err != nil {
		return nil, err
	}
	if o.Follow {
		if err := r.follow(ctx); err != nil {
			return nil, err
		}
	}
	// The backup is complete. A server that does not hear so finds out itself.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = all(len(r.sources), func(i int) error { return r.sources[i].end(last) })
	return nil, nil
}

// makeDir makes the directory, which must be empty, and locks it: two backups into
// one directory would replace each other's files.
func (r *run) makeDir() (io.Closer, error) {
	err := datadir.CheckDir(r.fs, r.o.Dir)
	if err == nil {
		err = mustBeEmpty(r.fs, r.o.Dir, datadir.LockFile)
	}
	if err == nil {
		err = datadir.MakeDir(r.fs, r.o.Dir)
	}
	if err != nil {
		return nil, err
	}
	lock, err := datadir.Lock(r.fs, r.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: another backup is made there", ErrInUse, r.o.Dir)
	}
	if err := mustBeEmpty(r.fs, r.o.Dir, datadir.LockFile); err != nil { // of a backup that has just ended
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// removeFiles removes what a backup that has failed has written. If there is a
// manifest it goes first, durably: what a crash leaves is then known to be incomplete.
func (r *run) removeFiles() error {
	names, err := r.fs.List(r.o.Dir)
	if slices.Contains(names, manifestFile) {
		err = errors.Join(r.fs.Remove(r.fs.PathJoin(r.o.Dir, manifestFile)), datadir.SyncDir(r.fs, r.o.Dir))
	}
	for _, name := range names {
		if err == nil && name != manifestFile && name != datadir.LockFile {
			err = r.fs.Remove(r.fs.PathJoin(r.o.Dir, name))
		}
	}
	return err
}

// each calls fn for all servers at once. It keeps the backup alive at a server that is
// done until all are.
func (r *run) each(ctx context.Context, fn func(*source) error) error {
	var left atomic.Int64
	left.Store(int64(len(r.sources)))
	done := make(chan struct{})
	return all(len(r.sources), func(i int) error {
		err := fn(r.sources[i])
		if left.Add(-1) == 0 {
			close(done)
		}
		if err != nil {
			return err
		}
		return r.sources[i].keep(ctx, done)
	})
}

// keep keeps the backup alive at all servers until a channel is closed.
func (r *run) keep(ctx context.Context, until <-chan struct{}) error {
	return all(len(r.sources), func(i int) error { return r.sources[i].keep(ctx, until) })
}

// begin begins the backup at all servers.
func (r *run) begin(ctx context.Context) error {
	var id [idBytes]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	for i := range placement.Server(len(r.o.Addrs)) {
		r.sources = append(r.sources, &source{server: i, addr: r.o.Addrs[i], files: Files{Base: fileName(i, baseKind), Log: fileName(i, logKind)}})
	}
	if err := r.each(ctx, func(s *source) error { return s.dial(ctx, r.o.Dial) }); err != nil {
		return err
	}
	first := &r.sources[0].begun
	r.manifest = Manifest{Format: Version, ID: hex.EncodeToString(id[:]), Servers: first.Servers, Partitions: first.Partitions}
	for _, s := range r.sources {
		b := &s.begun
		if b.Server != s.server || b.Servers != len(r.sources) || b.Partitions != first.Partitions {
			return s.failed(fmt.Errorf("it is number %d of %d with %d partitions, want number %d of %d with %d",
				b.Server, b.Servers, b.Partitions, s.server, len(r.sources), first.Partitions))
		}
		s.files.Identity, s.files.Incarnation, s.files.Epoch = hex.EncodeToString(b.Identity[:]), b.Incarnation, b.Epoch
		s.files.LogFrom = b.Log
		var err error
		if s.log, err = createLog(r.fs, r.fs.PathJoin(r.o.Dir, s.files.Log), id, s.server, s.next); err != nil {
			return err
		}
	}
	return nil
}

// close waits until all servers have closed a tick that is at least least. It returns
// the highest tick that all have closed, the position up to which the log of each has
// it, and the highest tick of visible changes.
func (r *run) close(ctx context.Context, least clock.Tick) (tick clock.Tick, ends []wal.LSN, present clock.Tick, err error) {
	ends = make([]wal.LSN, len(r.sources))
	closed := make([]wire.BackupClosed, len(r.sources))
	for began := time.Now(); ; {
		err := r.each(ctx, func(s *source) (err error) {
			closed[s.server], err = s.closed(ctx)
			return err
		})
		if err != nil {
			return 0, nil, 0, err
		}
		slow := 0
		for i, c := range closed {
			if c.Tick < closed[slow].Tick {
				slow = i
			}
			ends[i], present = wal.LSN(c.Log), max(present, clock.Tick(c.Present))
		}
		if tick = clock.Tick(closed[slow].Tick); tick >= least {
			return tick, ends, present, nil
		}
		if time.Since(began) > closeMax {
			return 0, nil, 0, r.sources[slow].failed(fmt.Errorf("a transaction in doubt has kept tick %d open for %v", tick+1, closeMax))
		}
		if err := sleep(ctx, clock.TickLength); err != nil {
			return 0, nil, 0, err
		}
	}
}

// move fetches the logs up to a tick that all servers have closed, which is at least
// least, and makes it the last of the backup.
func (r *run) move(ctx context.Context, least clock.Tick) error {
	tick, ends, _, err := r.close(ctx, least)
	if err != nil {
		return err
	}
	err = r.each(ctx, func(s *source) error {
		err := s.fetchLog(ctx, ends[s.server])
		if err == nil {
			err = s.log.closed(tick, s.next)
		}
		if err == nil {
			err = s.beside(ctx, s.log.f.Sync)
		}
		return err
	})
	if err != nil {
		return err
	}
	next := r.manifest
	next.setLast(tick)
	next.Files = nil
	for _, s := range r.sources {
		s.files.LogBytes, s.files.LogTo = s.log.bytes, uint64(s.log.to)
		next.Files = append(next.Files, s.files)
	}
	if err := r.write(ctx, &next); err != nil {
		return err
	}
	r.manifest, r.written = next, true
	if r.o.Moved != nil {
		r.o.Moved(&r.manifest)
	}
	return nil
}

// write writes a manifest, and keeps the backup alive at all servers meanwhile.
func (r *run) write(ctx context.Context, m *Manifest) error {
	written := make(chan struct{})
	var err error
	go func() {
		defer close(written)
		err = m.write(r.fs, r.o.Dir)
	}()
	kept := r.keep(ctx, written)
	<-written
	return errors.Join(err, kept)
}

// follow moves the last tick on until ctx or the time ends.
func (r *run) follow(ctx context.Context) error {
	every := r.o.Every
	if every == 0 {
		every = time.Second
	}
	if r.o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.o.For)
		defer cancel()
	}
	// A move is not cut off: the connections would be of no use, and what has
	// committed before the end would be missing.
	moves := context.WithoutCancel(ctx)
	for ended := false; !ended; {
		least := r.manifest.Last
		rest, cancel := context.WithTimeout(ctx, every)
		err := r.keep(moves, rest.Done())
		cancel()
		if err != nil {
			return err
		}
		if ended = ctx.Err() != nil; ended { // what was acknowledged so far is part of the backup
			_, _, present, err := r.close(moves, least)
			if err != nil {
				return err
			}
			least = present
		}
		if err := r.move(moves, least); err != nil {
			return err
		}
	}
	return nil
}

// showRows shows how many rows of all bases have been written.
func (r *run) showRows() {
	r.showMu.Lock()
	defer r.showMu.Unlock()
	if r.o.Progress == nil {
		return
	}
	p := Progress{Stage: "rows"}
	for _, s := range r.sources {
		p.Done, p.Total = p.Done+s.rows.done.Load(), p.Total+s.rows.total.Load()
	}
	r.o.Progress(p)
}
