package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// A host that is started again after another host has taken over its data server is a
// keeper at first: it has no data server, and keeps copies. When its copy of its own
// data server is in sync, the other host gives the server back. docs/replication.md has
// the rules.

const (
	// returnPatience is how long only its own host may take a server that was given back.
	returnPatience = 5 * time.Second
	// formerDir follows the name of a directory that a copy has replaced.
	formerDir = ".former"
)

// keeperIndex returns the index under which a keeper is registered. No data server has
// it.
func keeperIndex(size, host int) placement.Server { return placement.Server(size + host) }

// keeperDir returns the directory of the copies of a host without its data server.
func keeperDir(dir string, host int) string {
	return filepath.Join(dir, fmt.Sprintf("keeper-%d", host))
}

// keeperOf returns the registration of a host as a keeper, false if it is none.
func keeperOf(s *member.State, host int) (member.Registration, bool) {
	if s == nil || s.Map == nil {
		return member.Registration{}, false
	}
	if own, ok := s.Map.Server(ownServer(host)); !ok || own.Host == host {
		return member.Registration{}, false
	}
	return s.Registered(keeperIndex(s.Map.Size, host))
}

// dialHost returns a function that connects to a host that keeps a copy: to its own
// data server, or to the keeper. A keeper may have an address that its data server had,
// so that address is not resolved.
func (p *place) dialHost(o *JoinOptions) func(ctx context.Context, host int) (rdma.Conn, error) {
	who := rdma.Identity{Role: rdma.RoleServer, Name: fmt.Sprintf("server-%d", o.Index)}
	direct := rdma.As(o.Provider, who)
	resolved := direct
	if f, ok := o.Provider.(*multi.Provider); ok {
		quiet := f.Quiet()
		quiet.Resolve = nil
		direct = rdma.As(quiet, who)
	}
	return func(ctx context.Context, host int) (rdma.Conn, error) {
		if k, ok := keeperOf(p.state.Load(), host); ok {
			return direct.Dial(ctx, addressOf(k.Server))
		}
		return resolved.Dial(ctx, p.addrs[host])
	}
}

// keeping is the state of a host that is a keeper.
type keeping struct {
	o      *JoinOptions
	own    string // directory of the host's own data server
	dir    string
	keeper *server.Keeper
	lock   io.Closer // of own; nil if there is none
	state  atomic.Pointer[member.State]
	news   bell          // rings when state changes
	lostAt time.Duration // by clock.Now: since then the data server has no lease; 0: it has one
	noted  string        // the text of the last message

	reading *reading // of the copy of the host's own data server; nil: none has begun
	again   bool     // the last call of read found the copy silent
}

// comeBack waits until a host that is started again has its own data server back, if
// another host has that and the options ask for it. kept reports whether the host kept
// copies meanwhile.
func comeBack(ctx context.Context, o *JoinOptions) (kept bool, err error) {
	if o.DataDir == "" || o.Replicas <= 1 || keeperIndex(o.Servers, o.host()) >= member.MaxServers {
		return false, nil
	}
	state, err := o.Store.State(ctx)
	if err != nil || state.Map == nil {
		return false, err
	}
	own := server.ServerDir(o.DataDir, int(o.Index))
	if err := finishReturn(o.fs(), o, state.Map); err != nil {
		return false, err
	}
	where, ok := state.Map.Server(o.Index)
	if !ok || where.Host == o.host() || state.Map.Size != o.Servers || !o.Return {
		return false, nil
	}
	if at, err := datadir.ReadPlace(o.fs(), own); err != nil || at.Cluster != 0 && at.Cluster != uint64(state.Map.ID) {
		return false, err // of another cluster: taking the place reports it
	}
	k := &keeping{o: o, own: own, dir: keeperDir(o.DataDir, o.host())}
	k.state.Store(state)
	return true, k.run(ctx)
}

func (k *keeping) run(ctx context.Context) (err error) {
	o := k.o
	endpoints, err := endpointsOf(o.Addr)
	if err != nil {
		return err
	}
	if err := o.setSecret(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.unlock()) }()
	if there, serr := exists(o.fs(), k.own); serr != nil || there {
		if serr != nil {
			return serr
		}
		if k.lock, err = datadir.Lock(o.fs(), k.own); err != nil { // a former process still runs
			return err
		}
	}
	if err := moveCopies(o.fs(), k.own, k.dir); err != nil {
		return err
	}
	if k.keeper, err = server.NewKeeper(server.KeeperConfig{
		Provider: o.Provider, Addr: o.Addr, Dir: k.dir, FS: o.fs(), SegmentBytes: o.around.segment,
		Host: o.host(), Servers: o.Servers, Log: o.Log,
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.keeper.Close()) }()
	if err := k.keeper.Start(); err != nil {
		return err
	}
	if o.Keeping != nil {
		o.Keeping()
	}
	life, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() { k.register(life, endpoints) })
	follows := follow(o.Store, k.take, func(err error) {
		o.Log.Warn("members unknown", "host", o.Index, "error", err)
	})
	defer follows.close()
	return k.wait(ctx, endpoints)
}

func (k *keeping) take(s *member.State) {
	if s.Map != nil {
		k.state.Store(s)
		k.news.ring()
	}
}

// register keeps the host registered as a keeper.
func (k *keeping) register(ctx context.Context, endpoints []member.Endpoint) {
	self := member.Server{
		Index: keeperIndex(k.o.Servers, k.o.host()), Instance: member.NewInstance(), Host: k.o.host(), Zone: k.o.Zone, Endpoints: endpoints,
	}
	for ctx.Err() == nil {
		l, err := k.o.Store.Join(ctx, self, k.o.Lease)
		if err == nil {
			select {
			case <-l.Lost():
			case <-ctx.Done():
				leaveLease(l)
				return
			}
		} else if ctx.Err() == nil {
			k.o.Log.Warn("keeper not registered", "host", k.o.Index, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(k.o.Lease / rejoinPauses):
		}
	}
}

// wait waits until no host has the data server's lease and the copy here is in sync,
// and takes the server.
func (k *keeping) wait(ctx context.Context, endpoints []member.Endpoint) error {
	o := k.o
	tick := time.NewTicker(takeoverTick)
	defer tick.Stop()
	next := time.Duration(0)
	for {
		news := k.news.next()
		s, now := k.state.Load(), clock.Now()
		where, _ := s.Map.Server(o.Index)
		k.say(fmt.Sprintf("data server %d is at host %d; this host keeps copies until the server comes back", o.Index, where.Host))
		k.read(s.Map.Set(o.Index).Members.Has(s.Map.Copy(o.Index, o.host())))
		if now >= next && k.due(s, now) {
			back, err := k.comeBack(ctx, endpoints)
			if back {
				return err
			}
			if err != nil && ctx.Err() == nil {
				o.Log.Warn("data server does not come back yet", "server", o.Index, "error", oneLine(err))
			}
			next = clock.Now() + takeoverPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-news:
		}
	}
}

// read begins to read the copy of the host's own data server when it is in sync, and
// once more when nothing more comes for it: then the copy need not be read when it is
// to replace its home.
func (k *keeping) read(inSync bool) {
	quiet, _ := k.keeper.CopySilence(k.o.Index)
	silent := quiet >= copyQuiet
	switch {
	case !inSync:
		k.reading = nil
	case k.reading == nil || silent && !k.again:
		k.reading = readCopy(k.keeper, k.o.Index)
	}
	k.again = silent
}

// due reports whether the keeper is to take its data server: no host has the lease, the
// copy here is in sync, and the server is to be here, or no other host takes it in
// time.
func (k *keeping) due(s *member.State, now time.Duration) bool {
	index, host := k.o.Index, k.o.host()
	if _, alive := s.Registered(index); alive {
		k.lostAt = 0
		return false
	}
	if k.lostAt == 0 {
		k.lostAt = now
	}
	if !s.Map.Set(index).Members.Has(s.Map.Copy(index, host)) {
		return false
	}
	switch to, ready := goesTo(s, index); {
	case ready && to == host:
		return true
	case ready || s.Map.Drains(host):
		return now-k.lostAt >= returnPatience
	default:
		return now-k.lostAt >= takeoverGrace
	}
}

// unlock releases the directory that the host had of its data server.
func (k *keeping) unlock() error {
	if k.lock == nil {
		return nil
	}
	l := k.lock
	k.lock = nil
	return l.Close()
}

func (k *keeping) say(text string) {
	if k.noted != text {
		k.noted = text
		k.o.Waiting(text)
	}
}

// comeBack makes the copy at this host the data of its own server, and ends the keeper.
// back reports whether the map names this host.
func (k *keeping) comeBack(ctx context.Context, endpoints []member.Endpoint) (back bool, err error) {
	o := k.o
	self := member.Server{Index: o.Index, Instance: member.NewInstance(), Host: o.host(), Zone: o.Zone, Endpoints: endpoints}
	r := k.reading
	k.reading = nil // another attempt reads the copy again
	p := &promotion{ctx: ctx, o: o, copies: k.keeper, reading: r, self: self, prepare: func(dir string, m *member.Map) error {
		// Only a copy with this place is the data that the map will name.
		return datadir.WritePlace(o.fs(), dir, datadir.Place{Cluster: uint64(m.ID), Tried: uint64(self.Instance)})
	}}
	done, err := p.promote()
	if done == nil {
		return false, err
	}
	defer leaveLease(done.lease)
	o.Log.Warn("data server comes back to its own host", "server", o.Index, "epoch", done.set.Epoch)
	if err := errors.Join(k.keeper.Close(), k.unlock()); err != nil {
		return true, err
	}
	return true, finishReturn(o.fs(), o, done.m)
}

// moveCopies moves the copies that a host kept beside its data server to the keeper's
// directory.
func moveCopies(fs vfs.FS, own, keep string) error {
	return moveWhole(fs, fs.PathJoin(own, server.CopiesDir), fs.PathJoin(keep, server.CopiesDir))
}

// moveWhole moves a directory, unless it does not exist or another one has its place.
func moveWhole(fs vfs.FS, from, to string) error {
	if ok, err := exists(fs, from); err != nil || !ok {
		return err
	}
	if ok, err := exists(fs, to); err != nil || ok {
		return err
	}
	if err := datadir.MakeDir(fs, fs.PathDir(to)); err != nil {
		return err
	}
	if err := fs.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(datadir.SyncDir(fs, fs.PathDir(to)), datadir.SyncDir(fs, fs.PathDir(from)))
}

func exists(fs vfs.FS, path string) (bool, error) {
	_, err := fs.Stat(path)
	if oserror.IsNotExist(err) {
		return false, nil
	}
	return err == nil, err
}

// finishReturn makes the copy that the map names the directory of the host's own data
// server, if it is not yet: the map names an instance that has tried to take the server
// with this copy. Only then is the host's former directory of the server removed; other
// copies, and other data servers that the host has, stay. It may be interrupted at any
// step, and continues when called again.
func finishReturn(fs vfs.FS, o *JoinOptions, m *member.Map) error {
	where, ok := m.Server(o.Index)
	if !ok || where.Host != o.host() {
		return nil
	}
	own, keep := server.ServerDir(o.DataDir, int(o.Index)), keeperDir(o.DataDir, o.host())
	from, former := server.CopyDir(fs, keep, o.Index), own+formerDir
	_, pending, err := datadir.Read(fs, from)
	if err != nil {
		return err
	}
	if pending {
		at, err := datadir.ReadPlace(fs, from)
		if err != nil {
			return err
		}
		pending = at.Cluster == uint64(m.ID) && at.Tried == uint64(where.Instance)
	}
	if pending {
		if err := moveAside(fs, own, former); err != nil {
			return err
		}
		if err := datadir.Adopt(fs, from, own, uint32(m.Set(o.Index).Epoch), uint32(m.Set(o.Index).Since)); err != nil {
			return err
		}
	}
	if there, err := exists(fs, former); err != nil || !there {
		return err
	}
	if _, ok, err := datadir.Read(fs, own); err != nil || !ok {
		return err
	}
	err = errors.Join(
		moveWhole(fs, fs.PathJoin(keep, server.CopiesDir), fs.PathJoin(own, server.CopiesDir)),
		moveWhole(fs, fs.PathJoin(former, HomesDir), fs.PathJoin(own, HomesDir)),
	)
	if err != nil {
		return err
	}
	o.Log.Info("what this host had of its data server before is removed: a copy has taken its place", "server", o.Index, "dir", former)
	return errors.Join(fs.RemoveAll(keep), fs.RemoveAll(former))
}

// moveAside moves the directory of a data server aside, or makes an empty one there if
// it is lost. It replaces an older one there.
func moveAside(fs vfs.FS, own, former string) error {
	there, err := exists(fs, own)
	if err != nil {
		return err
	}
	if !there {
		return datadir.MakeDir(fs, former)
	}
	l, err := datadir.Lock(fs, own)
	if err == nil {
		err = l.Close()
	}
	if err != nil { // a former process still runs
		return err
	}
	if err := moveWhole(fs, fs.PathJoin(former, HomesDir), fs.PathJoin(own, HomesDir)); err != nil {
		return err
	}
	if err := fs.RemoveAll(former); err != nil {
		return err
	}
	return moveWhole(fs, own, former)
}
