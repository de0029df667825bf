package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/hosting"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// copied is an embedded bank whose servers have copies, on disks that may crash.
type copied struct {
	*Cluster
	net    *inproc.Network
	disk   *vfstest.Mem
	acct   *tables.Table
	keeper *Keeper // nil: the servers keep the copies
}

// copyOptions are those of a cluster with copies.
type copyOptions struct {
	servers, replicas int
	patience          time.Duration
	minInSync         int
	checkpoint        int64 // 0: none
	net               *inproc.Network
	fs                vfs.FS // the disk, with hooks; nil: the disk
	keeper            bool   // see openKept
}

// keepers runs a test with copies that data servers keep, and with copies at a host
// without one.
func keepers(t *testing.T, o copyOptions, test func(t *testing.T, o copyOptions)) {
	t.Run("data servers", func(t *testing.T) { test(t, o) })
	t.Run("keeper", func(t *testing.T) {
		o.servers, o.replicas, o.keeper = 2, 2, true
		test(t, o)
	})
}

func openCopied(t testing.TB, disk *vfstest.Mem, o copyOptions) (*copied, error) {
	t.Helper()
	cat := bank(t)
	c := &copied{disk: disk, acct: cat.MustTable("account"), net: o.net}
	if c.net == nil {
		c.net = inproc.New(inproc.Options{})
	}
	if o.checkpoint == 0 {
		o.checkpoint = 1 << 40
	}
	if o.fs == nil {
		o.fs = disk
	}
	if o.keeper {
		return c, c.openKept(cat, o)
	}
	var err error
	c.Cluster, err = Embedded(context.Background(), EmbeddedConfig{
		Catalog: cat, Servers: o.servers, Partitions: 2 * o.servers, Procedures: []txn.Procedure{transferProcedure(cat)}, Network: c.net,
		Durability: Disk, Dir: "data", FS: o.fs, SegmentBytes: 64 << 10, CheckpointBytes: o.checkpoint, CheckpointRate: 1 << 40,
		Replicas: o.replicas, CopyPatience: o.patience, MinInSync: o.minInSync, MemoryBytes: 1 << 27, Client: patient(),
	})
	return c, err
}

// openKept opens a bank whose two servers are on host 0. Their copies are at host 1,
// which has no data server. The directories that are lost are made of copies first.
func (c *copied) openKept(cat *tables.Catalog, o copyOptions) (err error) {
	c.Cluster = &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.keeper, err = NewKeeper(KeeperConfig{
		Provider: c.net, Addr: "host-1", Dir: "data/keeper", FS: o.fs, SegmentBytes: 64 << 10, Host: 1, Servers: o.servers,
	}); err != nil {
		return err
	}
	sets, addrs := FileSets(c.disk, "data"), make([]string, o.servers)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
		if err := c.adoptKept(sets, i); err != nil {
			return err
		}
	}
	if err := c.keeper.Start(); err != nil {
		return err
	}
	for i := range addrs {
		from := c.net.As(rdma.Identity{Role: rdma.RoleServer, Name: addrs[i]})
		s, err := New(Config{
			Index: i, Addrs: addrs, Partitions: 2 * o.servers, Catalog: cat, Procedures: []txn.Procedure{transferProcedure(cat)}, Provider: c.net,
			Durability: Disk, Dir: ServerDir("data", i), FS: o.fs, SegmentBytes: 64 << 10, CheckpointBytes: o.checkpoint, CheckpointRate: 1 << 40,
			Replicas: o.replicas, Sets: sets, CopyPatience: o.patience, MemoryBytes: 1 << 27,
			hosted: hosting.Options{Place: hosting.Place{Host: new(0), DialHost: func(ctx context.Context, host int) (rdma.Conn, error) {
				return from.Dial(ctx, fmt.Sprintf("host-%d", host))
			}}},
		})
		if err != nil {
			return err
		}
		c.Servers = append(c.Servers, s)
		if err := s.Start(); err != nil {
			return err
		}
	}
	c.DB, err = txn.Open(context.Background(), txn.Config{Servers: addrs, Dial: c.net.Dial, Retry: patient().Retry})
	return err
}

// adoptKept lets the keeper's copy take the place of a server's directory that is lost.
func (c *copied) adoptKept(sets Sets, home int) error {
	set, err := sets.Set(context.Background(), placement.Server(home))
	if _, there, rerr := datadir.Read(c.disk, ServerDir("data", home)); there || err != nil || rerr != nil || set == (replica.Set{}) {
		return errors.Join(err, rerr)
	}
	dir, made, err := c.keeper.YieldCopy(placement.Server(home))
	if err != nil {
		return errors.Join(ErrLost, err)
	}
	defer c.keeper.ResumeCopy(placement.Server(home))
	next, err := replica.Promote(set, 1, replica.Epoch(made.Since))
	if err != nil {
		return errors.Join(ErrLost, err)
	}
	if now, err := sets.SwapSet(context.Background(), placement.Server(home), set, next); err != nil || now != next {
		return errors.Join(replica.ErrReplaced, err)
	}
	return datadir.Adopt(c.disk, dir, ServerDir("data", home), uint32(next.Epoch), uint32(next.Since))
}

// Close closes the cluster, and the keeper.
func (c *copied) Close() error {
	err := c.Cluster.Close()
	if c.keeper != nil {
		err = errors.Join(err, c.keeper.Close())
	}
	return err
}

func mustOpenCopied(t testing.TB, disk *vfstest.Mem, o copyOptions) *copied {
	t.Helper()
	c, err := openCopied(t, disk, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await waits until something holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(testseed.Patience()); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", testseed.Patience(), what)
		}
	}
}

// inSync waits until all copies are in sync.
func (c *copied) inSync(t testing.TB) {
	t.Helper()
	defer func() {
		if t.Failed() {
			for _, s := range c.Servers {
				t.Logf("%+v", s.Copies())
			}
		}
	}()
	await(t, "all copies are in sync", func() bool {
		for _, s := range c.Servers {
			if slices.ContainsFunc(s.Copies(), func(k CopyStatus) bool { return !k.InSync }) {
				return false
			}
		}
		return true
	})
}

// put writes the balance of an account.
func (c *copied) put(ctx context.Context, id uint64, balance int64) error {
	return c.DB.Update(ctx, func(x *txn.Txn) error {
		row := c.acct.NewRow()
		row.SetInt(c.acct.Field("id"), int64(id))
		row.SetInt(c.acct.Field("balance"), balance)
		return x.Put(c.acct, tables.Num(id), row)
	})
}

// homeOf is the server of an account.
func (c *copied) homeOf(t testing.TB, id uint64) int {
	t.Helper()
	p, err := c.DB.Home(c.acct, tables.Num(id))
	if err != nil {
		t.Fatal(err)
	}
	return int(p) % len(c.Servers)
}

// at returns an account of a server.
func (c *copied) at(t testing.TB, server int) uint64 {
	t.Helper()
	for id := uint64(0); ; id++ {
		if c.homeOf(t, id) == server {
			return id
		}
	}
}

// keeps are the copies at the host which is that many after the home's.
func (c *copied) keeps(home, after int) *keptCopies {
	if c.keeper != nil {
		return &c.keeper.copies
	}
	return &c.Servers[(home+after)%len(c.Servers)].durable.copies
}

// kept is the copy of a home there.
func (c *copied) kept(home, after int) *keptCopy {
	k, err := c.keeps(home, after).get(placement.Server(home))
	if err != nil {
		panic(err)
	}
	return k
}

// records are those of a log that are durable, from a position on.
func records(t testing.TB, log *wal.Log, from wal.LSN) []string {
	t.Helper()
	all, err := readRecords(log, from)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readRecords(log *wal.Log, from wal.LSN) (all []string, err error) {
	_, err = log.Read(from, func(r *wal.Record) bool {
		all = append(all, fmt.Sprintf("%d-%d %x", r.Start, r.End, r.Payload))
		return true
	})
	return all, err
}

// sameRecords checks that a copy's log has the records of its home's from where both
// begin. Checkpoints cut them meanwhile, and what was cut is not compared.
func sameRecords(t testing.TB, kept, home *wal.Log) {
	t.Helper()
	await(t, "neither log is cut while it is read", func() bool {
		from := max(kept.First(), home.First())
		have, err := readRecords(kept, from)
		want, herr := readRecords(home, from)
		if from < max(kept.First(), home.First()) {
			return false
		}
		switch {
		case err != nil || herr != nil:
			t.Fatal(errors.Join(err, herr))
		case len(have) > len(want) || !slices.Equal(have, want[:len(have)]):
			t.Errorf("from %d on the copy has %d records, which are not the first of %d", from, len(have), len(want))
		}
		return len(have) > 0
	})
}

// TestAnswersAreInTheCopies: whatever was acknowledged is durable at all copies,
// which have the records of the home at the same positions.
func TestAnswersAreInTheCopies(t *testing.T) {
	keepers(t, copyOptions{servers: 3, replicas: 2, patience: time.Hour}, testAnswersAreInTheCopies)
	t.Run("3", func(t *testing.T) {
		testAnswersAreInTheCopies(t, copyOptions{servers: 3, replicas: 3, patience: time.Hour})
	})
}

func testAnswersAreInTheCopies(t *testing.T, o copyOptions) {
	t.Helper()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), o)
	defer c.Close()
	c.inSync(t)
	for i := range uint64(100) {
		if err := c.put(t.Context(), i%10, int64(i)); err != nil {
			t.Fatal(err)
		}
		home := c.homeOf(t, i%10)
		s := c.Servers[home]
		p := s.parts.of[func() int { h, _ := c.DB.Home(c.acct, tables.Num(i%10)); return int(h) }()]
		p.mu.Lock()
		at := p.records.logged
		p.mu.Unlock()
		for k := 1; k < o.replicas; k++ {
			if log := c.kept(home, k).log; log.Durable() < at {
				t.Fatalf("commit %d was acknowledged at %d of the log of server %d, and its copy %d is durable up to %d", i, at, home, k, log.Durable())
			}
		}
	}
	for home, s := range c.Servers {
		for k := 1; k < o.replicas; k++ {
			kept := c.kept(home, k).log
			have := records(t, kept, 0)
			if want := records(t, s.durable.log, 0); len(have) < 10 || !slices.Equal(have, want[:len(have)]) {
				t.Errorf("the copy of server %d has %d records, which are not the first of %d", home, len(have), len(want))
			}
		}
	}
}

// TestLostDirectories: the directory of one server after another is lost, in
// crashes under load, with checkpoints that cut the log. A copy takes its place,
// and nothing that was acknowledged is lost.
func TestLostDirectories(t *testing.T) {
	t.Parallel()
	keepers(t, copyOptions{servers: 3, replicas: 2, checkpoint: 4 << 10}, testLostDirectories)
}

func testLostDirectories(t *testing.T, o copyOptions) {
	t.Helper()
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	disk := vfstest.NewCrashableMem()
	acked := map[uint64]int64{} // by account
	tried := map[uint64][]int64{}
	value := int64(0)
	const accounts = 40
	for round := range 4 {
		o.replicas = min(2+round%2, o.servers)
		c := mustOpenCopied(t, disk, o)
		ids := make([]uint64, accounts)
		for i := range ids {
			ids[i] = uint64(i)
		}
		have, _ := accountsIn(t, c.Cluster, c.acct, ids)
		for id, want := range acked {
			if got := have[id]; got != want && !slices.Contains(tried[id], got) {
				t.Fatalf("round %d: account %d has %d, and %d was acknowledged", round, id, got, want)
			}
		}
		clear(tried)
		for id, balance := range have {
			acked[id] = balance
		}
		c.inSync(t)
		write := func() {
			value++
			id := uint64(r.IntN(accounts))
			tried[id] = append(tried[id], value)
			if err := c.put(t.Context(), id, value); err != nil {
				t.Fatal(err)
			}
			acked[id], tried[id] = value, nil
		}
		await(t, "all copies have taken checkpoints", func() bool {
			write()
			for home := range c.Servers {
				k := c.kept(home, 1)
				k.mu.Lock()
				base := k.base
				k.mu.Unlock()
				if base == 0 {
					return false
				}
			}
			return true
		})
		for range 100 + r.IntN(100) {
			write()
		}
		lost := r.IntN(o.servers)
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := crashed.RemoveAll(ServerDir("data", lost)); err != nil {
			t.Fatal(err)
		}
		disk = crashed
	}
}

// TestSilentCopyLeaves: answers wait for a copy that is silent until it has left
// the set. It is then not adopted; it comes back, catches up, and is.
func TestSilentCopyLeaves(t *testing.T) {
	t.Parallel()
	keepers(t, copyOptions{servers: 2, replicas: 2, patience: 200 * time.Millisecond}, testSilentCopyLeaves)
}

func testSilentCopyLeaves(t *testing.T, o copyOptions) {
	t.Helper()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), o)
	c.inSync(t)
	id := c.at(t, 0)
	home := c.Servers[0]
	for round := range 3 {
		if err := c.put(t.Context(), id, int64(10*round)); err != nil {
			t.Fatal(err)
		}
		// The copy takes nothing more from server 0; what it holds itself goes on.
		kept := c.kept(0, 1)
		kept.mu.Lock()
		before := kept.log.Durable()
		done := make(chan error, 1)
		go func() { done <- c.put(context.Background(), id, int64(10*round+1)) }()
		var err error
		await(t, "the commit goes on without the copy", func() bool {
			select {
			case err = <-done:
				return true
			default:
				return false
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		set, err := home.cfg.Sets.Set(t.Context(), 0)
		if err != nil || set.Members != replica.First(1) {
			t.Fatalf("acknowledged while the set is %+v, %v", set, err)
		}
		if kept.log.Durable() != before {
			t.Fatal("the copy was not silent")
		}
		crashed := c.disk.CrashClone(vfs.CrashCloneCfg{})
		if err := crashed.RemoveAll(ServerDir("data", 0)); err != nil {
			t.Fatal(err)
		}
		if x, err := openCopied(t, crashed, copyOptions{servers: 2, replicas: 2, keeper: o.keeper}); !errors.Is(err, ErrLost) {
			t.Errorf("opened with a copy that was not in sync: %v, %v", x, err)
		}
		kept.mu.Unlock()
		c.inSync(t)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplacedDirectoryIsRefused: a directory that was lost, and comes back after a
// copy has taken its place, is not served.
func TestReplacedDirectoryIsRefused(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	if err := c.put(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rename(ServerDir("data", 0), "away"); err != nil {
		t.Fatal(err)
	}
	c = mustOpenCopied(t, disk, o)
	if err := c.put(t.Context(), id, 2); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := disk.RemoveAll(ServerDir("data", 0)); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rename("away", ServerDir("data", 0)); err != nil {
		t.Fatal(err)
	}
	for try := range 4 { // an attempt must not make the next one succeed
		if c, err := openCopied(t, disk, o); !errors.Is(err, replica.ErrReplaced) {
			t.Errorf("attempt %d: opened with a directory that was replaced: %+v, %v", try, c, err)
			break
		}
	}
	// Nor is the copy itself, without the set.
	if _, err := New(Config{
		Index: 1, Addrs: []string{"server-0", "server-1"}, Partitions: 4, Catalog: bank(t), Provider: inproc.New(inproc.Options{}),
		Durability: Disk, Dir: CopyDir(disk, ServerDir("data", 0), 1), FS: disk,
	}); err == nil {
		t.Error("the copy of a directory is served as if it were one")
	}
}

// TestOlderStateIsRefused: an older state of a directory is not served, however often
// it is tried, and does not have the place of the present one.
func TestOlderStateIsRefused(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	home := ServerDir("data", 0)
	id := uint64(0)
	for life := range 3 {
		c := mustOpenCopied(t, disk, o)
		c.inSync(t)
		id = c.at(t, 0)
		if err := c.put(t.Context(), id, int64(life)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if life > 0 {
			continue
		}
		if ok, err := vfs.Clone(disk, disk, home, "older", vfs.CloneSync); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	if err := disk.Rename(home, "present"); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rename("older", home); err != nil {
		t.Fatal(err)
	}
	for try := range 4 {
		if c, err := openCopied(t, disk, o); !errors.Is(err, replica.ErrReplaced) {
			t.Fatalf("attempt %d: opened with an older state of a directory: %+v, %v", try, c, err)
		}
	}
	if err := disk.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rename("present", home); err != nil {
		t.Fatal(err)
	}
	c := mustOpenCopied(t, disk, o)
	defer c.Close()
	if have, _ := accountsIn(t, c.Cluster, c.acct, []uint64{id}); have[id] != 2 {
		t.Errorf("the account has %d, want 2", have[id])
	}
}

// TestRecoveredIsConfirmedFirst: a home recovers what its copy in sync lacks. Nobody
// reads it before the copy has it, or has left the set.
func TestRecoveredIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	keepers(t, copyOptions{servers: 2, replicas: 2, patience: time.Hour}, testRecoveredIsConfirmedFirst)
}

func testRecoveredIsConfirmedFirst(t *testing.T, o copyOptions) {
	t.Helper()
	disk := vfstest.NewCrashableMem()
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	if err := c.put(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	kept := c.kept(0, 1)
	kept.mu.Lock() // it takes nothing more
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.put(ctx, id, 2) }()
	log := c.Servers[0].durable.log
	await(t, "the commit is durable at home", func() bool { return log.Durable() > kept.log.Durable()+24 && log.Durable() == log.End() })
	crashed := disk.CrashClone(vfs.CrashCloneCfg{})
	select {
	case err := <-done:
		t.Fatalf("acknowledged without the copy: %v", err)
	default:
	}
	cancel()
	kept.mu.Unlock()
	<-done
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	o.net = inproc.New(inproc.Options{})
	keeper := "server-1"
	if o.keeper {
		keeper = "host-1"
	}
	o.net.FailDials("server-0", keeper, rdma.ErrRefused)
	c = mustOpenCopied(t, crashed, o)
	defer c.Close()
	view := func(ctx context.Context) (balance int64, err error) {
		err = c.DB.View(ctx, func(x *txn.Txn) error {
			row, err := x.Get(c.acct, tables.Num(id))
			if err == nil {
				balance = row.Int(c.acct.Field("balance"))
			}
			return err
		})
		return balance, err
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if balance, err := view(short); err == nil {
		t.Fatalf("balance %d was read, and the copy does not have it", balance)
	}
	asked, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if resp, err := askLastOutcome(t, asked, c); err == nil {
		t.Fatalf("the outcome %v was told, and the copy does not have it", resp)
	}
	refused, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.DB.Update(refused, func(x *txn.Txn) error {
		return x.Insert(c.acct, tables.Num(id), c.acct.NewRow())
	}); errors.Is(err, txn.ErrExists) {
		t.Fatal("an insert was refused because of the row, and the copy does not have it")
	}
	o.net.FailDials("server-0", keeper, nil)
	long, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if balance, err := view(long); err != nil || balance != 2 {
		t.Logf("%+v", c.Servers[0].Copies())
		t.Errorf("balance %d, %v, want 2", balance, err)
	}
}

// askLastOutcome asks server 0 for the outcome of the last transaction of a session
// that it has recovered.
func askLastOutcome(t testing.TB, ctx context.Context, c *copied) (wire.Code, error) {
	t.Helper()
	s := c.Servers[0]
	var of wire.ID
	s.outcomes.mu.Lock()
	for client, f := range s.outcomes.fates {
		if f.restored && f.seq > of.Seq {
			of = wire.ID{Client: client, Seq: f.seq}
		}
	}
	s.outcomes.mu.Unlock()
	if of == (wire.ID{}) {
		t.Fatal("no session was recovered")
	}
	conn, err := c.net.Dial(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := rdma.Call(ctx, conn, wire.AppendOutcome(nil, of, wire.Sent{}, wire.OutcomeSettle), nil)
	if err != nil {
		return 0, err
	}
	return wire.Code(resp[0]), nil
}

// TestFullCopyLeaves: a copy that begins sessions and takes nothing of the log, since
// its disk is full, leaves the set, and answers go on.
func TestFullCopyLeaves(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if full.Load() && strings.Contains(name, CopiesDir) && (op == vfstest.Create || op == vfstest.Reserve) {
			return syscall.ENOSPC
		}
		return nil
	}
	c := mustOpenCopied(t, mem, copyOptions{servers: 2, replicas: 2, fs: fs, patience: 1200 * time.Millisecond}) // above the pause between sessions
	c.inSync(t)
	id := c.at(t, 0)
	full.Store(true)
	for i := int64(1); c.Servers[0].Copies()[0].InSync; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
		err := c.put(ctx, id, i)
		cancel()
		if err != nil {
			t.Fatalf("commit %d waits for a copy that is full: %v; %+v", i, err, c.Servers[0].Copies())
		}
	}
	full.Store(false)
	c.inSync(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDelayedSteps: a copy takes nothing from a home of an earlier epoch, nothing
// of an earlier session, no piece twice and none out of order, and is removed once
// in a session at most.
func TestDelayedSteps(t *testing.T) {
	keepers(t, copyOptions{servers: 2, replicas: 2, patience: time.Hour}, testDelayedSteps)
}

func testDelayedSteps(t *testing.T, o copyOptions) {
	t.Helper()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), o)
	defer c.Close()
	c.inSync(t)
	id := c.at(t, 0)
	if err := c.put(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	kept := c.kept(0, 1)
	kept.mu.Lock()
	epoch, session, end := uint32(kept.rule.Epoch), kept.session, kept.log.End()
	kept.mu.Unlock()
	frames, err := c.Servers[0].durable.log.Frames(0, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		m    wire.CopyStep
		ok   bool
	}{
		{"an epoch before", wire.CopyStep{Step: wire.CopyFrames, Epoch: epoch - 1, Session: session, At: uint64(end), Bytes: frames}, false},
		{"a session before", wire.CopyStep{Step: wire.CopyReset, Epoch: epoch, Session: session - 1}, false},
		{"a session to come", wire.CopyStep{Step: wire.CopyReset, Epoch: epoch, Session: session + 1}, false},
		{"repeated", wire.CopyStep{Step: wire.CopyFrames, Epoch: epoch, Session: session, At: 0, Bytes: frames}, true},
		{"too late", wire.CopyStep{Step: wire.CopyFrames, Epoch: epoch, Session: session, At: uint64(end) + 8, Bytes: frames}, true},
		{"of another position", wire.CopyStep{Step: wire.CopyFrames, Epoch: epoch, Session: session, At: uint64(end), Bytes: frames}, false},
		{"a piece of no checkpoint", wire.CopyStep{Step: wire.CopyBase, Epoch: epoch, Session: session, Log: 8, At: 8, Bytes: []byte{1}}, false},
		{"no checkpoint", wire.CopyStep{Step: wire.CopyInstall, Epoch: epoch, Session: session, Log: 8, At: 8}, false},
	} {
		x.m.Server = 0
		state, err := kept.step(t.Context(), &x.m)
		if (err == nil) != x.ok || x.ok && (state.End != uint64(end) || !state.There) {
			t.Errorf("%s: %+v, %v; want success: %t", x.name, state, err, x.ok)
		}
	}
	have := records(t, kept.log, 0)
	if want := records(t, c.Servers[0].durable.log, 0); !slices.Equal(have, want[:len(have)]) || len(have) == 0 {
		t.Error("the copy has other records than the home")
	}
}

// TestLostDirectoryInDoubt: servers crash under transfers between them, and the
// directory of one of them is lost. A copy takes its place, the transactions in doubt
// are resolved, no money is lost or made, and all that was acknowledged is there.
func TestLostDirectoryInDoubt(t *testing.T) {
	t.Parallel()
	keepers(t, copyOptions{servers: 3, replicas: 2, checkpoint: 16 << 10}, testLostDirectoryInDoubt)
}

func testLostDirectoryInDoubt(t *testing.T, o copyOptions) {
	t.Helper()
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	const accounts, workers, balance = 24, 6, 1000
	disk := vfstest.NewCrashableMem()
	c := mustOpenCopied(t, disk, o)
	for id := range uint64(accounts + workers) {
		if err := c.put(t.Context(), id, balance); err != nil {
			t.Fatal(err)
		}
	}
	doubts := 0
	var counts [workers]atomic.Int64 // acknowledged, beside the counters' first balance
	ids := make([]uint64, accounts+workers)
	for i := range ids {
		ids[i] = uint64(i)
	}
	for round, begin := 0, time.Now(); round < 4 || doubts == 0 && time.Since(begin) < time.Minute; round++ {
		c.inSync(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range workers {
			rnd := rand.New(rand.NewPCG(r.Uint64(), 0))
			wg.Go(func() {
				for ctx.Err() == nil {
					from, to := uint64(rnd.IntN(accounts)), uint64(rnd.IntN(accounts))
					if from == to || c.transferAndCount(ctx, from, to, accounts+uint64(w)) != nil {
						continue
					}
					counts[w].Add(1)
				}
			})
		}
		time.Sleep(time.Duration(20+r.IntN(60)) * time.Millisecond)
		var before [workers]int64
		for w := range before {
			before[w] = counts[w].Load()
		}
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		cancel()
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := crashed.RemoveAll(ServerDir("data", r.IntN(o.servers))); err != nil {
			t.Fatal(err)
		}
		disk = crashed
		c = mustOpenCopied(t, disk, o)
		for _, s := range c.Servers {
			doubts += s.Recovered().InDoubt
		}
		have, sum := accountsIn(t, c.Cluster, c.acct, ids)
		counted := int64(0)
		for w := range before {
			got := have[accounts+uint64(w)] - balance
			if got < before[w] {
				t.Errorf("round %d: worker %d counts %d transfers, and %d were acknowledged", round, w, got, before[w])
			}
			counts[w].Store(got)
			counted += got
		}
		if want := int64((accounts+workers)*balance) + counted; sum != want {
			t.Fatalf("round %d: the accounts have %d, want %d", round, sum, want)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if doubts == 0 {
		t.Error("no transaction was in doubt")
	}
	t.Logf("%d transactions were in doubt", doubts)
}

// transferAndCount moves money between two accounts, and adds one to a third.
func (c *copied) transferAndCount(ctx context.Context, from, to, counter uint64) error {
	return c.DB.Update(ctx, func(x *txn.Txn) error {
		for _, m := range []struct {
			id  uint64
			add int64
		}{{from, -1}, {to, 1}, {counter, 1}} {
			row, err := x.Get(c.acct, tables.Num(m.id))
			if err != nil {
				return err
			}
			row = row.Clone()
			row.SetInt(c.acct.Field("balance"), row.Int(c.acct.Field("balance"))+m.add)
			if err := x.Update(c.acct, tables.Num(m.id), row); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestInstallBesideTheLog: a copy takes the log, and acknowledges it, while it reads a
// checkpoint that has come, however long that takes. It stays in the set, and has the checkpoint afterwards.
func TestInstallBesideTheLog(t *testing.T) {
	keepers(t, copyOptions{servers: 2, replicas: 2, patience: time.Hour, checkpoint: 4 << 10}, testInstallBesideTheLog)
}

func testInstallBesideTheLog(t *testing.T, o copyOptions) {
	t.Helper()
	reading, release := make(chan struct{}), make(chan struct{})
	var slow atomic.Bool
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.OpenR && strings.HasSuffix(name, fs.PathJoin("server-0", baseFile)) && slow.CompareAndSwap(true, false) {
			close(reading)
			<-release
		}
		return nil
	}
	o.fs = fs
	c := mustOpenCopied(t, mem, o)
	defer c.Close()
	end := sync.OnceFunc(func() { close(release) })
	defer end()
	c.inSync(t)
	slow.Store(true)
	id, kept := c.at(t, 0), c.kept(0, 1)
	put := func(i int64) {
		ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
		defer cancel()
		if err := c.put(ctx, id, i); err != nil {
			t.Fatalf("commit %d waits for a copy that installs a checkpoint: %v; %+v", i, err, c.Servers[0].Copies())
		}
	}
	i, more := int64(0), int64(0)
	for begin := time.Now(); more < 50 && time.Since(begin) < testseed.Patience(); i++ {
		put(i)
		select {
		case <-reading:
			more++
		default:
		}
	}
	if more < 50 {
		t.Fatal("no checkpoint came")
	}
	state := func() wire.CopyState {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return kept.state()
	}
	was := state()
	if !c.Servers[0].Copies()[0].InSync {
		t.Error("the copy has left the set")
	}
	end()
	await(t, "the copy has the checkpoint", func() bool { put(i); i++; return state().Base > was.Base })
}
