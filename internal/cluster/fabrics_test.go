package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drtmx/internal/placement"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/multi"
	"drtmx/rdma/shm"
	"drtmx/tables"
	"drtmx/txn"
)

// both is a provider of tcp and of what stands for shared memory: the
// in-process fabric, which the race detector sees through.
func both(t testing.TB, local rdma.Provider) *multi.Provider {
	t.Helper()
	f, err := NewFabrics(multi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.Shm = local
	return f
}

func newTrialCatalog() (*tables.Catalog, error) {
	return tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "v", Type: tables.Int64}},
	})
}

func trialCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	c, err := newTrialCatalog()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func freeHosts(t testing.TB, n int) []string {
	t.Helper()
	hosts, err := testaddr.New(n)
	if err != nil {
		t.Fatal(err)
	}
	return hosts
}

// startReal starts a data server; TestMain replaces startServer.
var startReal = startServer

// realServers makes this test's data servers real ones.
func realServers(t testing.TB) {
	t.Helper()
	fake := startServer
	t.Cleanup(func() { startServer = fake })
	startServer = startReal
}

// fakeServers makes this test's data servers do nothing.
func fakeServers(t testing.TB) {
	t.Helper()
	was := startServer
	t.Cleanup(func() { startServer = was })
	startServer = fakeStart
}

func needShm(t testing.TB) rdma.Provider {
	t.Helper()
	if raceBuild {
		t.Skip("under the race detector regions are on the heap, which is not shared memory")
	}
	p, err := shm.New(shm.Options{})
	if errors.Is(err, rdma.ErrUnsupported) {
		t.Skipf("SKIP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func startAll(t testing.TB, p func() *multi.Provider, dir string, hosts []string) []*Member {
	t.Helper()
	var all []*Member
	for i := range hosts {
		s, err := Join(t.Context(), memberOptions(t, p(), dir, hosts, i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		all = append(all, s)
	}
	return all
}

func memberOptions(t testing.TB, p *multi.Provider, dir string, hosts []string, i int) JoinOptions {
	return JoinOptions{
		Size: Size{Servers: len(hosts)}, Index: placement.Server(i), Addrs: MemberAddrs(len(hosts), []string{multi.Shm, multi.TCP}, dir, hosts), Dir: dir,
		Provider: p, Workload: Workload{Catalog: trialCatalog(t)}, MemoryBytes: 256 << 20,
	}
}

func trialDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "drtmx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// put writes a row and reads it again.
func put(ctx context.Context, db *txn.DB, key uint64) error {
	tab, err := db.Table("t")
	if err != nil {
		return err
	}
	err = db.Update(ctx, func(x *txn.Txn) error { return x.Insert(tab, tables.Num(key), tab.NewRow()) })
	if err != nil {
		return err
	}
	return db.View(ctx, func(x *txn.Txn) error {
		_, err := x.Get(tab, tables.Num(key))
		return err
	})
}

// patience bounds a test that waits for several things, each for testseed.Patience.
func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*testseed.Patience())
	t.Cleanup(cancel)
	return ctx
}

// A client takes shared memory where it leads to the server, and tcp elsewhere.
func TestClientPicksTheBestFabric(t *testing.T) {
	local := needShm(t)
	realServers(t)
	ctx, dir, hosts := patience(t), trialDir(t), freeHosts(t, 2)
	startAll(t, func() *multi.Provider { return both(t, local) }, dir, hosts)
	for _, c := range []struct {
		addr string
		want string
		lack bool // of shared memory, at the client
	}{
		{"drtmx://" + hosts[1], "shm", false},
		{"drtmx+shm://" + dir, "shm", false},
		{"drtmx://" + strings.Join(hosts, ","), "tcp", true},
	} {
		a, err := ParseAddress(c.addr)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := Connect(ctx, ConnectOptions{Address: a})
		if err != nil {
			t.Fatal(err)
		}
		if catalog, err := cl.Tables(); err != nil || len(catalog.Tables) != 1 || len(cl.Addrs()) != 2 {
			t.Errorf("%s: tables %v, %v at %v", c.addr, catalog, err, cl.Addrs())
		}
		if c.lack {
			cl.provider.(*multi.Provider).Shm = nil
		}
		db, err := txn.Open(ctx, cl.Config())
		if err != nil {
			t.Fatal(err)
		}
		for k := range uint64(8) {
			if err := put(ctx, db, k+uint64(len(c.addr))<<32); err != nil && !errors.Is(err, txn.ErrExists) {
				t.Errorf("%s: %v", c.addr, err)
			}
		}
		if got := cl.Fabric(); got != c.want {
			t.Errorf("%s: over %s, want %s", c.addr, got, c.want)
		}
		db.Close()
	}
}

// A socket of the same name, but of another cluster, is not taken.
func TestSocketOfAnotherClusterIsNotTaken(t *testing.T) {
	local := inproc.New(inproc.Options{})
	realServers(t)
	hosts := freeHosts(t, 2)
	dir := trialDir(t)
	startAll(t, func() *multi.Provider { return both(t, local) }, dir, hosts[:1])
	alien := MemberAddrs(1, []string{multi.Shm, multi.TCP}, dir, hosts[1:])[0]
	f := both(t, local)
	if c, err := f.Dial(patience(t), alien); err == nil {
		t.Errorf("%v, %v", c, err)
	}
	c, err := f.Dial(patience(t), MemberAddrs(1, []string{multi.Shm, multi.TCP}, dir, hosts[:1])[0])
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if f.Name() != "shm" {
		t.Errorf("over %s", f.Name())
	}
}

func TestNobodyAnswers(t *testing.T) {
	a, err := ParseAddress("drtmx://" + strings.Join(freeHosts(t, 2), ","))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(patience(t), ConnectOptions{Address: a}); !errors.Is(err, ErrNoAnswer) {
		t.Error(err)
	}
	if _, err := Connect(patience(t), ConnectOptions{Address: &Address{Dir: t.TempDir()}}); !errors.Is(err, ErrNoCluster) {
		t.Error(err)
	}
}

// After a restart the memory is gone, which the old handle says and a new one does not mind.
func TestClientMeetsARestartedServer(t *testing.T) {
	local := inproc.New(inproc.Options{})
	realServers(t)
	ctx, dir, hosts := patience(t), trialDir(t), freeHosts(t, 1)
	all := startAll(t, func() *multi.Provider { return both(t, local) }, dir, hosts)
	if _, err := Join(ctx, memberOptions(t, both(t, local), dir, hosts, 0)); !errors.Is(err, ErrMember) {
		t.Fatalf("a second server of the same number: %v", err)
	}
	a := &Address{Hosts: hosts}
	open := func() *txn.DB {
		cl, err := Connect(ctx, ConnectOptions{Address: a})
		if err != nil {
			t.Fatal(err)
		}
		db, err := txn.Open(ctx, cl.Config())
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	defer db.Close()
	if err := put(ctx, db, 1); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, db, 2); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("while it is down: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "s0.pid")); !os.IsNotExist(err) {
		t.Errorf("pid file: %v", err)
	}
	startAll(t, func() *multi.Provider { return both(t, local) }, dir, hosts)
	if err := put(ctx, db, 2); !errors.Is(err, txn.ErrRestarted) || !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("after its restart: %v", err)
	}
	again := open()
	defer again.Close()
	if err := put(ctx, again, 1); err != nil {
		t.Errorf("opened again: %v", err)
	}
}
