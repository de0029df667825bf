package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// hostsOf are hosts of a cluster in this process, each with a directory and a handle
// on the store of its own.
type hostsOf struct {
	t       *testing.T
	ctx     context.Context
	members *membertest.Local
	dir     string
	// replicas of each server, its own data included, and the bytes of a log after which
	// there is a checkpoint; 0 is the default.
	replicas   int
	checkpoint uint64
	addrs      []string
	stores     []*awayStore
	hosts      []*Member
	device     string // of RDMA, over which they serve; "": over tcp
	db         *txn.DB
	cluster    *Cluster
	next       uint64             // key of fillOne
	set        func(*JoinOptions) // changes the options of every host; nil: nothing
}

func (h *hostsOf) options(i int) JoinOptions {
	o := durableOptions(h.t, h.stores[i], filepath.Join(h.dir, fmt.Sprintf("host-%d", i)), len(h.addrs), i, h.addrs[i])
	o.Replicas, o.CheckpointBytes = h.replicas, h.checkpoint
	if h.device != "" {
		f, err := NewFabrics(multi.Options{Device: h.device}, multi.Verbs)
		if err != nil {
			h.t.Fatal(err)
		}
		o.Provider, o.Addr, o.Lease = f, multi.Address{Verbs: h.addrs[i]}.String(), 5*time.Second // a guest is slow
	}
	o.around.start, o.around.paces = startReal, pacesFor(h.t)
	if h.set != nil {
		h.set(&o)
	}
	return o
}

// startHosts starts hosts, and a client, and waits until every server has a copy.
func startHosts(t *testing.T, n int) *hostsOf {
	t.Helper()
	return startHostsWith(t, n, 2, 0)
}

// startHostsWith is startHosts with so many replicas, and a checkpoint after so many
// bytes of a log.
func startHostsWith(t *testing.T, n, replicas int, checkpoint uint64) *hostsOf {
	t.Helper()
	return startHostsSet(t, n, replicas, checkpoint, nil)
}

// startHostsSet is startHostsWith with other options.
func startHostsSet(t *testing.T, n, replicas int, checkpoint uint64, set func(*JoinOptions)) *hostsOf {
	t.Helper()
	h := &hostsOf{set: set, t: t, replicas: replicas, checkpoint: checkpoint, ctx: patience(t), members: membertest.NewLocal(), dir: t.TempDir(), addrs: freeHosts(t, n)}
	h.hosts = make([]*Member, n)
	for range n {
		h.stores = append(h.stores, &awayStore{Store: h.members.Open()})
	}
	h.startAll()
	t.Cleanup(h.close)
	h.connect()
	for i := range n {
		h.inSync(i)
	}
	return h
}

func (h *hostsOf) startAll() {
	h.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(h.hosts))
	for i := range h.hosts {
		wg.Go(func() { h.hosts[i], errs[i] = Join(h.ctx, h.options(i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostsOf) connect() {
	h.t.Helper()
	var err error
	o := membersOf(h.members)
	o.Fabrics.Device = h.device
	if h.cluster, err = Connect(h.ctx, o); err != nil {
		h.t.Fatal(err)
	}
	if h.db, err = txn.Open(h.ctx, h.cluster.Config()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostsOf) close() {
	if h.t.Failed() {
		s, err := h.members.Open().State(context.Background())
		if err == nil && s.Map != nil {
			h.t.Logf("servers %+v, sets %+v, alive %+v", s.Map.Servers, s.Map.Sets, s.Alive)
		}
	}
	var errs []error
	if h.db != nil {
		errs = append(errs, h.db.Close())
	}
	if h.cluster != nil {
		errs = append(errs, h.cluster.Close())
	}
	for i, m := range h.hosts {
		if m != nil {
			errs = append(errs, m.Close())
		}
		h.hosts[i] = nil
	}
	if err := errors.Join(errs...); err != nil {
		h.t.Error(err)
	}
}

// inSync waits until a server has a copy in sync.
func (h *hostsOf) inSync(i int) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("server %d has a copy in sync", i), func() bool {
		s, err := h.members.Open().State(h.ctx)
		return err == nil && s.Map.Set(placement.Server(i)).Members&^1 != 0
	})
}

// runs waits until a server that another host has taken over is at work there: the map
// names the host first.
func (h *hostsOf) runs(i, host int) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("server %d is at host %d, and runs", i, host), func() bool {
		s, err := h.members.Open().State(h.ctx)
		if err != nil {
			return false
		}
		r, ok := s.Registered(placement.Server(i))
		now, _ := s.Map.Server(placement.Server(i))
		return ok && now.Host == host && r.Instance == now.Instance
	})
}

// at is the host that has a server.
func (h *hostsOf) at(i int) int {
	s, err := h.members.Open().State(h.ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	now, _ := s.Map.Server(placement.Server(i))
	return now.Host
}

// cutOff makes a host lose its lease, and not reach the store any more. It runs on.
func (h *hostsOf) cutOff(i int) {
	h.t.Helper()
	h.stores[i].away.Store(true)
	if err := h.stores[i].Evict(h.ctx, placement.Server(i), h.hosts[i].place.self.Instance); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostsOf) fill(from, to uint64) {
	h.t.Helper()
	for k := from; k < to; k += 2 {
		if err := insertPair(h.ctx, h.db, k); err != nil {
			h.t.Fatalf("key %d: %v", k, err)
		}
	}
}

func (h *hostsOf) has(to uint64) {
	h.t.Helper()
	tab, err := h.db.Table("t")
	if err != nil {
		h.t.Fatal(err)
	}
	for k := range to {
		if err := h.db.View(h.ctx, func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(k)); return err }); err != nil {
			h.t.Errorf("key %d: %v", k, err)
		}
	}
}

// TestHostTakesOver: a data server whose host is cut off from the store, or has
// ended, is taken over by the host that has its copy. A client goes on, nothing is
// lost, the former host acknowledges nothing more and cannot come back with its
// directory, and the server has a copy again.
func TestHostTakesOver(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cut off", "ended"} {
		t.Run(how, func(t *testing.T) {
			h := startHosts(t, 3)
			h.fill(0, 40)
			former := h.hosts[1]
			h.inSync(1) // the copy may have left the set on a busy machine, and a host that is cut off cannot change it
			if how == "cut off" {
				h.cutOff(1)
			} else if err := former.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
			if how == "cut off" {
				if h.stores[1].away.Store(false); former.server.(*server.Server).DurableTo() == 0 {
					t.Error("it had no log")
				}
				select {
				case <-former.Lost():
				case <-h.ctx.Done():
					t.Fatal("the former host does not know")
				}
				if err := former.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := h.db.Outcome(h.ctx, txn.ID{Client: 4711, Seq: 1}); !errors.Is(err, txn.ErrOutcomeUnknown) {
				t.Errorf("the outcome of a transaction that nobody knows: %v", err)
			}
			h.fill(40, 60)
			h.has(60)
			h.hosts[1] = nil
			if m, err := Join(h.ctx, h.options(1)); !errors.Is(err, member.ErrElsewhere) && !errors.Is(err, member.ErrTaken) {
				t.Errorf("the former host again: %v", err)
				_ = m.Close()
			}
			h.inSync(1)
			if s, _ := h.members.Open().State(h.ctx); !s.Map.Set(1).Members.Has(s.Map.Copy(1, 0)) {
				t.Errorf("the copy of server 1, which is at host 2, is not at host 0: %+v", s.Map.Sets)
			}
			h.fill(60, 80)
			h.has(80)
			if err := h.cluster.Err(); err != nil {
				t.Errorf("the client counts the server as lost: %v", err)
			}
		})
	}
}

// TestHostIsLostTwice: a server that was taken over is taken over again when its
// second host is lost, by the host that has its new copy.
func TestHostIsLostTwice(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 3)
	h.fill(0, 20)
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[0] = nil
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.fill(20, 40)
	for _, i := range []int{2, 1, 0} {
		h.inSync(i)
	}
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has all servers", func() bool { return h.at(0) == 2 && h.at(1) == 2 })
	h.fill(40, 60)
	h.has(60)
}

// TestHostStartsAgainWithOthers: a host that has taken a server over and is started
// again runs both.
func TestHostStartsAgainWithOthers(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 2)
	h.fill(0, 20)
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[0] = nil
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.fill(20, 40)
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.hosts[1], err = Join(h.ctx, h.options(1)); err != nil {
		t.Fatal(err)
	}
	h.has(40)
	h.fill(40, 60)
}

// TestTakeoverUnderWriters: clients write all the time while a host
// ends. What was acknowledged is there afterwards, once.
func TestTakeoverUnderWriters(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 3)
	var next atomic.Uint64
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	var acked sync.Map
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := next.Add(2) - 2
				if err := insertPair(h.ctx, h.db, k); err == nil {
					acked.Store(k, true)
				} else if h.ctx.Err() == nil {
					t.Errorf("key %d: %v", k, err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer end()
	eventually(t, "writers write", func() bool { return next.Load() > 100 })
	h.inSync(1)
	if err := h.hosts[1].Close(); err != nil {
		t.Error(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	from := next.Load()
	eventually(t, "writers go on", func() bool { return next.Load() > from+100 })
	end()
	wg.Wait()
	n := 0
	tab, _ := h.db.Table("t")
	acked.Range(func(k, _ any) bool {
		n++
		for i := range uint64(2) {
			if err := h.db.View(h.ctx, func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(k.(uint64)+i)); return err }); err != nil {
				t.Errorf("acknowledged key %d: %v", k.(uint64)+i, err)
			}
		}
		return true
	})
	t.Log(n, "acknowledged")
}

// TestResumeTakeover: a host that ends between the change of the map and the move of
// the copy goes on where it was.
func TestResumeTakeover(t *testing.T) {
	dir := t.TempDir()
	from := serverCopyDir(dir, 1)
	set := replica.Set{Epoch: 5, Since: 5, Version: 3, Members: 1}
	m := &member.Map{Epoch: 9, ID: 7, Size: 3, Sets: []member.ServerSet{{Server: 1, Set: set}}, Servers: []member.Server{
		{Index: 0, Host: 0}, {Index: 1, Host: 2, Instance: 77}, {Index: 2, Host: 2},
	}}
	id := datadir.Identity{Format: datadir.Format, ID: "00112233445566778899aabbccddeeff", Incarnation: 5, Server: 1, Servers: 3, Partitions: 3, Catalog: []byte("{}")}
	o := durableOptions(t, nil, dir, 3, 2, "127.0.0.1:1")
	if err := errors.Join(datadir.WriteCopy(vfs.Default, from, datadir.Copy{Epoch: 4, Since: 2}), datadir.CompleteCopy(vfs.Default, from, id)); err != nil {
		t.Fatal(err)
	}
	// It was here before, and has not been removed to the end.
	if err := errors.Join(os.MkdirAll(homeDir(dir, 1), 0o700), os.WriteFile(filepath.Join(homeDir(dir, 1), "EPOCH"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := resumeTakeovers(&o, dir, m); err != nil {
			t.Fatal(err)
		}
		to := homeDir(dir, 1)
		if _, ok, err := datadir.Read(vfs.Default, to); err != nil || !ok {
			t.Fatalf("%v, %v: the copy is not the directory of server 1", ok, err)
		}
		if p, err := datadir.ReadPlace(vfs.Default, to); err != nil || p != (datadir.Place{Cluster: 7, Admitted: 77}) {
			t.Errorf("place %+v, %v", p, err)
		}
		if _, ok, err := datadir.ReadCopy(vfs.Default, to); err != nil || ok {
			t.Errorf("it is still a copy: %v, %v", ok, err)
		}
	}
	d, err := datadir.OpenPlaced(vfs.Default, homeDir(dir, 1), datadir.Identity{Server: 1, Servers: 3, Partitions: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Epoch <= uint32(set.Epoch) {
		t.Errorf("epoch %d, want more than %d, that of the set", d.Epoch, set.Epoch)
	}
}

// TestNoTakeoverOutOfSync: a host whose copy is not in sync does not take the place of
// its home, however long that is away.
func TestNoTakeoverOutOfSync(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 2)
	h.fill(0, 10)
	former := h.hosts[0]
	h.stores[1].away.Store(true) // it cannot take a place before the set is changed
	h.cutOff(0)
	eventually(t, "host 0 knows that its lease has ended", func() bool { return !former.place.holds() })
	if _, err := member.Change(h.ctx, h.stores[1], func(m *member.Map) (*member.Map, error) {
		set := m.Set(0)
		set.Members, set.Version = replica.First(1), set.Version+1
		m.PutSet(0, set)
		return m, nil
	}); err != nil {
		t.Fatal(err)
	}
	h.stores[1].away.Store(false)
	time.Sleep(takeoverGrace + 5*takeoverTick) // longer than a takeover would take
	if at := h.at(0); at != 0 {
		t.Errorf("server 0 is at host %d, whose copy is not in sync", at)
	}
}

// refusals counts how often a copy is read, and how often it is found damaged.
type refusals struct {
	copies
	all, n atomic.Int32
}

func (c *refusals) ReadCopy(home placement.Server) (server.CopyRead, error) {
	r, err := c.copies.ReadCopy(home)
	if err != nil {
		c.n.Add(1)
	}
	c.all.Add(1)
	return r, err
}

// TestDamagedCopyTakesNothingOver: a host whose copy is damaged changes nothing. Another
// one that has a whole copy takes the server over.
func TestDamagedCopyTakesNothingOver(t *testing.T) {
	t.Parallel()
	h := startHostsWith(t, 3, 3, 4<<10)
	h.fill(0, 200)
	eventually(t, "server 0 has two copies in sync", func() bool {
		s, err := h.members.Open().State(h.ctx)
		return err == nil && s.Map.Set(0).Members == replica.First(3)
	})
	o := h.hosts[1].others
	found := &refusals{copies: o.copies}
	o.mu.Lock()
	o.copies = found
	o.mu.Unlock()
	var base []string
	eventually(t, "host 1 has the checkpoint of server 0", func() bool {
		base, _ = filepath.Glob(filepath.Join(serverCopyDir(o.dir, 0), server.CheckpointDir, "*"))
		home, err := filepath.Glob(filepath.Join(h.hosts[0].place.config.Dir, server.CheckpointDir, "*"))
		return err == nil && len(base) == 1 && len(home) == 1 && filepath.Base(base[0]) == filepath.Base(home[0])
	})
	// Nobody takes the server before the copy that host 1 has in the end is damaged, and
	// host 1 tries first.
	h.stores[1].away.Store(true)
	h.stores[2].away.Store(true)
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[0] = nil
	if base, _ = filepath.Glob(filepath.Join(serverCopyDir(o.dir, 0), server.CheckpointDir, "*")); len(base) == 0 {
		t.Fatal("the copy of host 1 has no checkpoint any more")
	}
	for _, name := range base {
		flipByte(t, name)
	}
	read := found.all.Load() + 1 // one reading may have begun before
	eventually(t, "host 1 has read the damaged copy", func() bool { return found.all.Load() > read })
	h.stores[1].away.Store(false)
	tried := found.n.Load()
	eventually(t, "host 1 has tried, or has the server", func() bool { return found.n.Load() > tried+1 || h.at(0) == 1 })
	if at := h.at(0); at != 0 {
		t.Errorf("server 0 is at host %d, whose copy is damaged", at)
	}
	h.stores[2].away.Store(false)
	eventually(t, "host 2 has server 0", func() bool { return h.at(0) == 2 })
	h.fill(200, 220)
	h.has(220)
}

// flipByte damages a byte in the middle of a file.
func flipByte(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x55
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNothingIsTakenBeforeAllHaveStarted: a host that is slow to start with the others
// keeps its data server. When all have had their chance, one that is not there loses it.
func TestNothingIsTakenBeforeAllHaveStarted(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 2)
	h.fill(0, 10)
	h.inSync(0)
	h.stores[1].away.Store(true) // it takes no server while it closes
	for i := range h.hosts {
		if err := h.hosts[i].Close(); err != nil {
			t.Fatal(err)
		}
		h.hosts[i] = nil
	}
	h.stores[1].away.Store(false)
	settled := make(chan struct{})
	o := h.options(1)
	o.Settled = settled
	var err error
	if h.hosts[1], err = Join(h.ctx, o); err != nil {
		t.Fatal(err)
	}
	time.Sleep(takeoverGrace + 5*takeoverTick) // longer than a takeover would take
	if at := h.at(0); at != 0 {
		t.Errorf("server 0 is at host %d, before its own has had the chance to start", at)
	}
	close(settled)
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.has(10)
}

// TestTakeoverIsEndedLater: a host that is named in the map, but could not make the
// copy the data of the server at once, does so when it can.
func TestTakeoverIsEndedLater(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 3)
	h.fill(0, 20)
	o := h.hosts[2].others
	var obstacle string
	eventually(t, "host 2 has a complete copy of server 1", func() bool {
		dir := serverCopyDir(o.dir, 1)
		obstacle = filepath.Join(dir, "PLACE", "obstacle")
		_, ok, err := datadir.Read(vfs.Default, dir)
		return err == nil && ok && vfs.Default.MkdirAll(obstacle, 0o755) == nil
	})
	h.inSync(1)
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	time.Sleep(100 * time.Millisecond)
	if err := vfs.Default.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.ctx, testseed.Patience())
	defer cancel()
	tab, err := h.db.Table("t")
	if err != nil {
		t.Fatal(err)
	}
	for k := range uint64(20) {
		if err := h.db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(k)); return err }); err != nil {
			t.Fatalf("key %d: %v", k, err)
		}
	}
}

// unsureStore makes a takeover's change of the map and says that it does not know, and
// refuses the next question about the state.
type unsureStore struct {
	member.Store
	step atomic.Int32 // 1: made and not told, 2: refused
}

func (s *unsureStore) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	err := s.Store.Swap(ctx, expected, next)
	if now, _ := next.Server(1); err == nil && now.Host == 2 && s.step.CompareAndSwap(0, 1) {
		return errors.Join(member.ErrUnreachable, member.ErrOutcome)
	}
	return err
}

func (s *unsureStore) State(ctx context.Context) (*member.State, error) {
	if s.step.CompareAndSwap(1, 2) {
		return nil, member.ErrRefused
	}
	return s.Store.State(ctx)
}

// takenAgain counts the copies that are taken again.
type takenAgain struct {
	copies
	n atomic.Int32
}

func (c *takenAgain) ResumeCopy(home placement.Server) {
	c.n.Add(1)
	c.copies.ResumeCopy(home)
}

// TestTakeoverIsAskedFor: a host that does not know whether its change of the map was
// made keeps the copy given away, whatever the store answers, until it knows.
func TestTakeoverIsAskedFor(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 3)
	h.fill(0, 10)
	s := &unsureStore{Store: h.stores[2].Store}
	o := h.hosts[2].others
	again := &takenAgain{copies: o.copies}
	o.mu.Lock()
	o.o.Store, o.copies = s, again
	o.mu.Unlock()
	h.inSync(1)
	if err := h.hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[1] = nil
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	h.fill(10, 20)
	h.has(20)
	if n := s.step.Load(); n != 2 {
		t.Errorf("step %d, want 2: nothing was refused", n)
	}
	if n := again.n.Load(); n != 0 {
		t.Errorf("the copy is taken again %d times, while it may be the data of the server", n)
	}
}
