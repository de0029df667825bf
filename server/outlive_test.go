package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// crashes are durable servers, each on a file system of its own, that end without
// warning and lose what was not synced.
type crashes struct {
	*reborn
	net   *inproc.Network
	peers *hooks   // between the servers
	out   []*hooks // by server: what it sends
	disks []*vfstest.Mem
	space []*vfstest.FS // by server: what limits the space of its disk
	full  []bool        // by server: its disk has no space when it begins
	parts int
	// segmentBytes is the size of segments of servers that begin from now on.
	segmentBytes int64

	before          atomic.Pointer[func(vfstest.Op, string)]       // operations of all disks
	fail            atomic.Pointer[func(vfstest.Op, string) error] // likewise; an error is the operation's
	checkpointBytes int64

	often       bool // checkpoints are made all the time
	checkpoints atomic.Int64
	stop        []func() error // the checkpoints of each server
}

func startCrashes(t *testing.T, servers, partitions int, often bool) *crashes {
	t.Helper()
	return startSegments(t, servers, partitions, often, 16<<10)
}

// startSegments is startCrashes with a size of segments.
func startSegments(t *testing.T, servers, partitions int, often bool, segment int64) *crashes {
	t.Helper()
	net := inproc.New(inproc.Options{})
	f := vaultFabric{name: "inproc", provider: net}
	c := &crashes{net: net, peers: &hooks{Provider: net}, out: make([]*hooks, servers), space: make([]*vfstest.FS, servers), full: make([]bool, servers), parts: partitions, segmentBytes: segment, often: often, stop: make([]func() error, servers), reborn: &reborn{vaults: &vaults{catalog: vaultCatalog(t), fabric: f, n: 60}}}
	for i := range servers {
		c.addrs = append(c.addrs, fmt.Sprintf("crash-%d", i))
		c.disks = append(c.disks, vfstest.NewCrashableMem())
	}
	c.servers = make([]*server.Server, servers)
	for i := range servers {
		if err := c.begin(i); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i, s := range c.servers {
			if err := errors.Join(c.stop[i](), s.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	db, err := txn.Open(t.Context(), txn.Config{Servers: c.addrs, AllServers: true, Dial: net.Dial, Retry: txn.Retry{Patience: testseed.Patience()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	c.db = db
	return c
}

// syncTime is how long a sync takes, at least, so that much is read before it is
// durable.
const syncTime = 2 * time.Millisecond

func (c *crashes) begin(i int) error {
	disk := vfstest.New(c.disks[i])
	if c.full[i] {
		disk.SetSpace(0)
	}
	c.space[i] = disk
	disk.Before = func(_ int, op vfstest.Op, name string) error {
		if fn := c.before.Load(); fn != nil {
			(*fn)(op, name)
		}
		if fn := c.fail.Load(); fn != nil {
			if err := (*fn)(op, name); err != nil {
				return err
			}
		}
		if op == vfstest.Sync {
			time.Sleep(syncTime)
		}
		return nil
	}
	c.out[i] = &hooks{Provider: c.peers}
	s, err := server.New(server.Config{
		Index: i, Addrs: c.addrs, Partitions: c.parts, Catalog: c.catalog, Provider: c.out[i], MemoryBytes: 1 << 28, Retain: testseed.Patience(),
		Procedures: []txn.Procedure{{Name: "count", Body: c.count}},
		Durability: server.Disk, Dir: server.ServerDir("data", i), FS: disk, SegmentBytes: c.segmentBytes, CheckpointBytes: c.checkpointBytes, CheckpointRate: 1 << 40,
	})
	if err == nil {
		err = s.Start()
	}
	if err == nil {
		c.servers[i], c.stop[i] = s, c.repeatCheckpoints(s)
	}
	return err
}

// repeatCheckpoints makes checkpoints of a server until stop is called.
func (c *crashes) repeatCheckpoints(s *server.Server) (stop func() error) {
	if !c.often {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for {
			err := s.Checkpoint(ctx)
			if ctx.Err() != nil {
				err = nil
			} else if err == nil {
				c.checkpoints.Add(1)
				continue
			}
			ended <- err
			return
		}
	}()
	return func() error { cancel(); return <-ended }
}

// crash ends a server: nobody hears of it any more, and of what it has not synced
// its disk keeps a random part. It comes back after a while.
func (c *crashes) crash(r *rand.Rand, i int) error {
	if err := c.down(r, i); err != nil {
		return err
	}
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	return c.begin(i)
}

// down is crash without the return.
func (c *crashes) down(r *rand.Rand, i int) error {
	if err := c.net.Kill(c.addrs[i]); err != nil {
		return err
	}
	c.out[i].die() // nor does anybody hear of what it decides from now on
	disk := c.disks[i].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
	err := errors.Join(c.stop[i](), c.servers[i].Close()) // of what nobody uses any more
	c.disks[i] = disk
	return err
}

// counter is a client that counts in two rows at once, and knows how far it is.
type counter struct {
	c        *crashes
	s        *txn.Session
	id       int
	n        int64 // acknowledged
	here, at tables.Key
}

// step adds one to both rows, or to one of them by a procedure.
func (k *counter) step(ctx context.Context) error {
	hash, tree := k.c.table("hash"), k.c.table("tree")
	balance := hash.Field("balance")
	ctx, cancel := context.WithTimeout(ctx, testseed.Patience())
	defer cancel()
	err := k.s.Update(ctx, func(x *txn.Txn) error {
		for _, tab := range []*tables.Table{hash, tree} {
			row, err := x.Get(tab, k.here)
			if err != nil {
				return err
			}
			if n := row.Int(balance); n != k.n {
				return fmt.Errorf("client %d, table %s: %d, want %d", k.id, tab.Name(), n, k.n)
			}
			if err := x.Put(tab, k.here, k.c.row(tab, k.n+1, 1)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	k.n++
	home, err := k.c.db.Home(hash, k.at)
	if err != nil {
		return err
	}
	res, err := k.s.Call(ctx, home, "count", binary.LittleEndian.AppendUint64(nil, k.at.Num()))
	if err == nil && binary.LittleEndian.Uint64(res) != uint64(k.n) {
		err = fmt.Errorf("client %d: a procedure returns %d, want %d", k.id, binary.LittleEndian.Uint64(res), k.n)
	}
	return err
}

// watch reads all counters again and again. What it has seen once, no crash undoes.
func (c *crashes) watch(ctx context.Context, clients int, snapshot bool, stop *atomic.Bool) (views int, err error) {
	hash, tree := c.table("hash"), c.table("tree")
	seen := make([]int64, 2*clients)
	for ; !stop.Load() && err == nil; views++ {
		read := func(x *txn.Txn) error {
			for id := range clients {
				for i, key := range []uint64{uint64(id), uint64(id + 30)} {
					row, err := x.Get(hash, tables.Num(key))
					if err != nil {
						return err
					}
					n := row.Int(hash.Field("balance"))
					if i == 0 {
						other, err := x.Get(tree, tables.Num(key))
						if err != nil {
							return err
						}
						if m := other.Int(tree.Field("balance")); m != n {
							return fmt.Errorf("half a transaction of client %d: %d and %d", id, n, m)
						}
					}
					if n < seen[2*id+i] {
						return fmt.Errorf("client %d, key %d: %d, and was %d", id, key, n, seen[2*id+i])
					}
					seen[2*id+i] = n
				}
			}
			return nil
		}
		// A body may run on rows that do not stand: only the last run counts.
		kept := append([]int64(nil), seen...)
		body := func(x *txn.Txn) error {
			copy(seen, kept)
			return read(x)
		}
		within, cancel := context.WithTimeout(ctx, testseed.Patience())
		if snapshot {
			err = c.db.Snapshot(within, body)
		} else {
			err = c.db.View(within, body)
		}
		cancel()
	}
	return views, err
}

// TestClientsOutliveCrashes: servers crash and recover under clients that go on
// without being opened again. Nothing acknowledged is lost, nothing is doubled or
// half applied, and nothing that a View or a Snapshot has returned is undone.
func TestClientsOutliveCrashes(t *testing.T) {
	t.Parallel()
	for _, shape := range [][2]int{{1, 1}, {1, 3}, {2, 2}} {
		t.Run(fmt.Sprintf("%d servers, %d partitions", shape[0], shape[1]), func(t *testing.T) {
			outlive(t, startCrashes(t, shape[0], shape[1], false))
		})
	}
	for _, shape := range [][2]int{{2, 4}, {3, 3}} {
		t.Run(fmt.Sprintf("%d servers, %d partitions, checkpoints", shape[0], shape[1]), func(t *testing.T) {
			outlive(t, startCrashes(t, shape[0], shape[1], true))
		})
	}
}

func outlive(t *testing.T, c *crashes) {
	t.Helper()
	const clients = 4
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 7))
	ctx := t.Context()
	hash, tree := c.table("hash"), c.table("tree")
	if err := c.db.Update(ctx, func(x *txn.Txn) error {
		var errs []error
		for key := range uint64(60) {
			errs = append(errs, x.Put(hash, tables.Num(key), c.row(hash, 0, 1)), x.Put(tree, tables.Num(key), c.row(tree, 0, 1)))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var counters []*counter
	errs := make([]error, clients+2)
	views := make([]int, 2)
	for id := range clients {
		s, err := c.db.NewSession(ctx)
		if err != nil {
			t.Fatal(err)
		}
		k := &counter{c: c, s: s, id: id, here: tables.Num(uint64(id)), at: tables.Num(uint64(id + 30))}
		counters = append(counters, k)
		wg.Go(func() {
			defer s.Close()
			for !stop.Load() && errs[id] == nil {
				errs[id] = k.step(ctx)
			}
		})
	}
	for i := range views {
		wg.Go(func() { views[i], errs[clients+i] = c.watch(ctx, clients, i == 1, &stop) })
	}
	crashed := 0
	end := time.Now().Add(simTime(t, 1500*time.Millisecond))
	for ; time.Now().Before(end) || c.often && c.checkpoints.Load() == 0 && time.Now().Before(end.Add(testseed.Patience())); crashed++ {
		time.Sleep(time.Duration(20+r.IntN(80)) * time.Millisecond)
		for i := range c.servers {
			if len(c.servers) == 1 || r.IntN(2) == 0 {
				if err := c.crash(r, i); err != nil {
					t.Error(err)
				}
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	total := int64(0)
	for _, k := range counters {
		total += k.n
	}
	t.Logf("%d rounds of crashes, %d checkpoints, %d transactions and as many calls acknowledged, %d Views, %d Snapshots",
		crashed, c.checkpoints.Load(), total, views[0], views[1])
	if c.often != (c.checkpoints.Load() > 0) {
		t.Errorf("%d checkpoints", c.checkpoints.Load())
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("DRTMX_SEED=%d: %v", seed, err)
		return
	}
	if err := c.db.View(ctx, func(x *txn.Txn) error {
		var errs []error
		for _, k := range counters {
			errs = append(errs, c.balance(x, hash, k.here, k.n), c.balance(x, tree, k.here, k.n), c.balance(x, hash, k.at, k.n))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Errorf("DRTMX_SEED=%d: %v", seed, err)
	}
	for _, s := range c.servers {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}
