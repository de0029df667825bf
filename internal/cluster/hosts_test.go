package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/member/etcd"
	"drtmx/internal/member/etcd/embedded"
	"drtmx/internal/placement"
	"drtmx/internal/vfstest"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// steerEnv names a directory in which files say what starting hosts do: "fail", or
// "hang" as long as the file is there.
const steerEnv = "DRTMX_TEST_STEER"

// hostMain is the process of a host, whose data server does nothing.
func hostMain() {
	startServer = fakeStart
	ctx, end := context.WithCancel(context.Background())
	go func() { // like a command, it ends when its parent does
		for os.Getppid() != 1 {
			time.Sleep(10 * time.Millisecond)
		}
		end()
	}()
	f, err := NewFabrics(multi.Options{}, multi.TCP)
	if err == nil {
		err = RunChild(ctx, ChildOptions{Provider: f.Member(multi.TCP), Lookup: steered, Members: etcd.OpenAt})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "drtmx: "+err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

func steered(string) (Workload, error) {
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(os.Getenv(steerEnv), name))
		return err == nil
	}
	for there("hang") {
		time.Sleep(time.Millisecond)
	}
	if there("fail") {
		return Workload{}, errors.New("as it was told")
	}
	c, err := newTrialCatalog()
	return Workload{Catalog: c}, err
}

// TestHostsAreRemovedFirst: the mark that the data of hosts is being removed goes when
// nothing of it can come back after a crash.
func TestHostsAreRemovedFirst(t *testing.T) {
	dir := t.TempDir()
	fs := vfstest.New(vfs.Default)
	h := &hostsData{fs: fs, dir: dir, shape: hostsShape{Format: hostsVersion, Servers: 1, Partitions: 1, Replicas: 1}}
	if err := os.MkdirAll(server.ServerDir(HostDir(dir, 0), 0), 0o700); err != nil {
		t.Fatal(err)
	}
	marks, durable := 0, false
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		switch _, err := os.Stat(HostDir(dir, 0)); {
		case op == vfstest.SyncDir && name == dir:
			durable = errors.Is(err, os.ErrNotExist)
		case op == vfstest.Rename:
			if marks++; marks == 2 && !durable {
				t.Error("the mark goes before the removal of the hosts is durable")
			}
		}
		return nil
	}
	if err := h.remove(); err != nil || marks != 2 {
		t.Errorf("%d changes of the mark, %v", marks, err)
	}
	if s, ok, err := readHosts(dir); err != nil || !ok || s != h.shape {
		t.Errorf("HOSTS has %+v, %v", s, err)
	}
}

// hostOptions are those of a cluster of hosts whose store is quick.
func hostOptions(t *testing.T, servers int) StartOptions {
	o := options("steered", servers)
	o.Command[1] = "host"
	o.Dir, o.Addrs = filepath.Join(trialDir(t), "run"), freeHosts(t, servers)
	o.DataDir, o.Partitions, o.Replicas = filepath.Join(t.TempDir(), "data"), servers, 1
	o.Hosts = &Hosts{Lease: time.Second, Members: func(ctx context.Context, dir, socket string) (func() error, error) {
		s, err := embedded.Start(ctx, embedded.Options{Dir: dir, Listen: socket, Volatile: true, Tick: 10 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		return s.Close, nil
	}}
	return o
}

// hostInfo returns what the supervisor says of a host.
func hostInfo(t *testing.T, dir string, host int) ServerInfo {
	t.Helper()
	i, err := Describe(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return i.Servers[host]
}

// awaitHost waits until a host is in a state.
func awaitHost(t *testing.T, dir string, host int, state string) {
	t.Helper()
	eventually(t, fmt.Sprintf("host %d %s", host, state), func() bool { return hostInfo(t, dir, host).State == state })
}

func startHost(t *testing.T, dir string, host int) error {
	serves, err := StartHost(t.Context(), dir, host)
	if serves != (err == nil) {
		t.Errorf("host %d serves: %v, %v", host, serves, err)
	}
	return err
}

func refused(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", what, err, text)
		}
	}
}

// TestHostsStartAgain: the end of a host is not that of the cluster. A host that ends
// by itself is started again, one that was killed is when somebody says so.
func TestHostsStartAgain(t *testing.T) {
	steer := t.TempDir()
	t.Setenv(steerEnv, steer)
	steerTo := func(name string) func() {
		path := filepath.Join(steer, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return func() { _ = os.Remove(path) }
	}
	o := hostOptions(t, 2)
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := hostInfo(t, o.Dir, 1)
	if first.State != HostRuns || !alive(first.PID) {
		t.Fatalf("host 1: %+v", first)
	}

	// By itself.
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process", func() bool {
		i := hostInfo(t, o.Dir, 1)
		return i.State == HostRuns && i.PID != first.PID && alive(i.PID)
	})

	// As asked, even while it starts.
	second := hostInfo(t, o.Dir, 1).PID
	refused(t, "started while it runs", startHost(t, o.Dir, 1), "host 1 runs already")
	if err := KillHost(t.Context(), o.Dir, 1); err != nil || alive(second) {
		t.Fatalf("killed: %v, alive %v", err, alive(second))
	}
	refused(t, "killed again", KillHost(t.Context(), o.Dir, 1), "host 1 was killed before")
	for _, host := range []int{-1, 2} {
		refused(t, "killed", KillHost(t.Context(), o.Dir, host), fmt.Sprintf("host %d: want 0 to 1", host))
	}
	free := steerTo("hang")
	started := make(chan error, 1)
	go func() { started <- startHost(t, o.Dir, 1) }()
	awaitHost(t, o.Dir, 1, HostStarts)
	if err := KillHost(t.Context(), o.Dir, 1); err != nil {
		t.Error(err)
	}
	refused(t, "killed while it starts", <-started, "host 1 was killed while it started")
	awaitHost(t, o.Dir, 1, HostKilled)
	free()

	// One that cannot start says why, and is tried again.
	free = steerTo("fail")
	refused(t, "a start that fails", startHost(t, o.Dir, 1), "server 1: as it was told")
	free()
	awaitHost(t, o.Dir, 1, HostRuns)

	// A request for a start is told that the cluster was stopped.
	if err := KillHost(t.Context(), o.Dir, 1); err != nil {
		t.Fatal(err)
	}
	steerTo("hang")
	go func() { started <- startHost(t, o.Dir, 1) }()
	awaitHost(t, o.Dir, 1, HostStarts)
	pids := c.PIDs()
	if err := Stop(t.Context(), o.Dir); err != nil {
		t.Error(err)
	}
	refused(t, "a start while the cluster stops", <-started, "the cluster was stopped")
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("host %d ends", pid), func() bool { return !running(pid) })
	}
	if err := c.Err(); !errors.Is(err, ErrStopped) {
		t.Errorf("the end of the cluster: %v", err)
	}
	eventually(t, "the runtime directory goes", func() bool {
		_, err := os.Stat(o.Dir)
		return errors.Is(err, os.ErrNotExist)
	})
	h, err := openHosts(o.Size)
	if err != nil {
		t.Fatalf("the data directory is not given up: %v", err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
}

// TestOrdinaryServersAreNoHosts: without copies nobody kills a data server.
func TestOrdinaryServersAreNoHosts(t *testing.T) {
	o := options("fine", 1)
	o.Dir = filepath.Join(trialDir(t), "run")
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	refused(t, "killed", KillHost(t.Context(), o.Dir, 0), "are not hosts", "--replicas")
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// TestEveryByteOfHosts: a byte of HOSTS that is another one is noticed.
func TestEveryByteOfHosts(t *testing.T) {
	size := Size{Servers: 2, Partitions: 3, Replicas: 2, DataDir: t.TempDir()}
	h, err := openHosts(size)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(size.DataDir, hostsFile)
	good, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		if err := os.WriteFile(at, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := openHosts(size)
		if !errors.Is(err, datadir.ErrCorrupt) || !strings.Contains(err.Error(), at) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("byte %d: %v", i, errors.Join(err, h.close()))
		}
		if _, err := ReadData(size.DataDir); !errors.Is(err, datadir.ErrCorrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
}

// TestHostsData: the directory of a cluster of hosts says what it is of, for one
// supervisor at a time. What removes it, or makes hosts of other data servers, goes
// on where it was interrupted.
func TestHostsData(t *testing.T) {
	dir := t.TempDir()
	size := Size{Servers: 2, Partitions: 3, Replicas: 2, DataDir: dir}
	open := func(size Size) error {
		h, err := openHosts(size)
		return errors.Join(err, h.close())
	}
	catalog, err := json.Marshal(trialCatalog(t))
	if err != nil {
		t.Fatal(err)
	}
	fill := func(path string, index int) {
		t.Helper()
		d, err := datadir.Open(vfs.Default, path, datadir.Identity{Server: placement.Server(index), Servers: 2, Partitions: 3, Incarnation: 7, Catalog: catalog})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, servers int) {
		t.Helper()
		d, err := ReadData(dir)
		if err != nil || d == nil || !d.Hosts || d.Servers != 2 || d.Partitions != 3 || d.Replicas != 2 || (d.Catalog != nil) != (servers > 0) {
			t.Fatalf("%s: %+v, %v", what, d, err)
		}
		all, err := d.Dirs(dir)
		if err != nil || len(all) != servers {
			t.Errorf("%s: %v, %v, want %d directories", what, all, err, servers)
		}
	}
	if d, err := ReadData(dir); d != nil || err != nil {
		t.Fatalf("an empty directory: %+v, %v", d, err)
	}

	// Data servers without copies become hosts.
	fill(server.ServerDir(dir, 0), 0)
	fill(server.ServerDir(dir, 1), 1)
	if d, err := ReadData(dir); err != nil || d.Hosts || d.Replicas != 0 {
		t.Fatalf("without hosts: %+v, %v", d, err)
	}
	if err := os.MkdirAll(filepath.Join(server.ServerDir(HostDir(dir, 1), 1), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := open(size); !errors.Is(err, ErrData) {
		t.Fatalf("a host that cannot be made: %v", err)
	}
	d, err := ReadData(dir)
	if err != nil || !d.Hosts || d.Catalog == nil {
		t.Errorf("interrupted: %+v, %v", d, err)
	}
	if err := os.RemoveAll(HostDir(dir, 1)); err != nil {
		t.Fatal(err)
	}
	h, err := openHosts(size)
	if err != nil {
		t.Fatal(err)
	}
	check("made hosts", 2)
	if err := open(size); !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	other := size
	other.Replicas = 1
	refused(t, "another number of replicas", open(other), "2 replicas, not of 2 with 3 and 1")

	// Removing.
	h, err = openHosts(size)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{MembersDir(dir), filepath.Join(dir, "mine")} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.shape.Removing = true // interrupted at once
	if err := errors.Join(datadir.WriteJSON(vfs.Default, dir, hostsFile, h.shape), h.close()); err != nil {
		t.Fatal(err)
	}
	if d, err := ReadData(dir); err != nil || d.Catalog != nil || d.Replicas != 2 {
		t.Errorf("removed in part: %+v, %v", d, err)
	}
	if err := open(size); err != nil {
		t.Fatal(err)
	}
	check("removed", 0)
	for name, want := range map[string]bool{HostDir(dir, 0): false, MembersDir(dir): false, filepath.Join(dir, "mine"): true} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
