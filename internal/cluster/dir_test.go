package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/testseed"
	"drtmx/rdma"
)

func fake(string) (rdma.Provider, error) { return fakeProvider{}, nil }

func inDir(dir string, servers int) StartOptions {
	o := options("fine", servers)
	o.Dir, o.Version = dir, "test"
	return o
}

// find is Connect to a directory, with a client of the fabric that nobody uses.
func find(ctx context.Context, dir string) (*Cluster, error) {
	return Connect(ctx, ConnectOptions{Dir: dir, provider: fake})
}

// startOnly starts a cluster in a directory and closes it.
func startOnly(ctx context.Context, dir string) error {
	c, err := Start(ctx, inDir(dir, 1))
	if err != nil {
		return err
	}
	return c.Close()
}

// serveIn runs a cluster in dir until the test ends or calls stop; ended
// delivers why it ended.
func serveIn(t *testing.T, dir string) (stop func(), ended <-chan error) {
	t.Helper()
	ready, done := make(chan Info, 16), make(chan error, 1)
	o := inDir(dir, 2)
	o.Ready = func(i Info) { ready <- i }
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("did not start: %v", err)
	}
	if i := <-ready; i.Generation != 1 {
		t.Errorf("ready with %+v", i)
	}
	stopped := make(chan struct{})
	go func() {
		select {
		case <-stopped:
		case <-c.Lost():
		}
		done <- errors.Join(c.Err(), c.Close())
	}()
	stop = sync.OnceFunc(func() { close(stopped) })
	t.Cleanup(func() {
		stop()
		_ = c.Close()
	})
	return stop, done
}

func TestStartConnectStop(t *testing.T) {
	dir := shortDir(t)
	_, ended := serveIn(t, dir)
	c, err := find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	info := c.Info()
	if len(info.Servers) != 2 || info.Partitions != 2 || info.Version != "test" || info.Generation != 1 ||
		c.Addrs()[1] != filepath.Join(dir, "s1.sock") || !alive(c.PIDs()[0]) {
		t.Errorf("attached to %+v at %v", info, c.Addrs())
	}
	if err := Stop(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrStopped) {
		t.Errorf("ended with %v, want ErrStopped", err)
	}
	<-c.Lost()
	if err := c.Err(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("attached process was told %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory that Start made is still there: %v", err)
	}
}

func TestLeavingAnAttachedClusterIsNoLoss(t *testing.T) {
	dir := shortDir(t)
	stop, ended := serveIn(t, dir)
	for range 3 {
		c, err := find(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil || c.Err() != nil {
			t.Errorf("close: %v, %v", err, c.Err())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestResetReplacesTheServers(t *testing.T) {
	dir := shortDir(t)
	stop, ended := serveIn(t, dir)
	c, err := find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := c.Info()
	after, err := Reset(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != 2 || after.Servers[0].PID == before.Servers[0].PID || alive(before.Servers[0].PID) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	<-c.Lost()
	if !strings.Contains(c.Err().Error(), "emptied") {
		t.Errorf("attached process was told %v", c.Err())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLostServerEndsTheCluster(t *testing.T) {
	dir := shortDir(t)
	_, ended := serveIn(t, dir)
	c, err := find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	info := c.Info()
	_ = syscall.Kill(info.Servers[0].PID, syscall.SIGKILL)
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Errorf("Start: %v, want ErrLost", err)
	}
	<-c.Lost()
	want := fmt.Sprintf("data server lost: data server 0 (pid %d) was ended by signal", info.Servers[0].PID)
	if err := c.Err(); !errors.Is(err, ErrLost) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("attached process was told %q, want %q", err, want)
	}
	if alive(info.Servers[1].PID) {
		t.Error("the other server lives on")
	}
}

// The owner of a cluster hears of a loss while the directory still has its
// files: what it records is there for everyone who finds the directory gone.
func TestLossIsReportedBeforeTheDirectoryIsLeft(t *testing.T) {
	dir, ready := shortDir(t), make(chan Info, 1)
	var why, gone error
	o := inDir(dir, 1)
	o.Ready = func(i Info) { ready <- i }
	o.OnLoss = func(err error) {
		why = err
		_, gone = os.Stat(filepath.Join(dir, lockFile))
	}
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	i := <-ready
	_ = syscall.Kill(i.Servers[0].PID, syscall.SIGKILL)
	<-c.Lost()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if !errors.Is(why, ErrLost) || gone != nil {
		t.Errorf("told %v; the directory: %v", why, gone)
	}
}

func TestBusyDirectory(t *testing.T) {
	dir := shortDir(t)
	serveIn(t, dir)
	err := startOnly(t.Context(), dir)
	if !errors.Is(err, ErrBusy) {
		t.Errorf("second Start: %v, want ErrBusy", err)
	}
	if err := Clear(t.Context(), dir); !errors.Is(err, ErrBusy) {
		t.Errorf("Clear: %v, want ErrBusy", err)
	}
}

// TestDyingProcessHoldsTheLock: a supervisor was killed, and its socket is closed before
// its lock. What is done to the directory waits for the lock.
func TestDyingProcessHoldsTheLock(t *testing.T) {
	dir := shortDir(t)
	plant(t, dir, deadInfo)
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Clear(ended, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("Clear, given up: %v, want %v", err, context.Canceled)
	}
	late := time.AfterFunc(50*time.Millisecond, func() { lock.Close() })
	defer late.Stop()
	if err := Clear(t.Context(), dir); err != nil {
		t.Errorf("Clear: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, controlFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead cluster's socket is left: %v", err)
	}
}

// plant makes the directory of a cluster that died.
func plant(t *testing.T, dir, info string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, infoFile), []byte(info), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, controlFile))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

const deadInfo = `{"format":1,"version":"old","fabric":"fake","servers":[{"socket":"s0.sock","pid":1}],"supervisor":999999}`

func TestDeadClusterIsNamedAndCleared(t *testing.T) {
	dir := shortDir(t)
	plant(t, dir, deadInfo)
	if _, err := find(t.Context(), dir); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "999999") {
		t.Errorf("Connect: %v, want ErrStale", err)
	}
	if _, err := Reset(t.Context(), dir); !errors.Is(err, ErrStale) {
		t.Errorf("Reset: %v, want ErrStale", err)
	}
	if err := Clear(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left after Clear: %v", left)
	}
	if err := Clear(t.Context(), dir); !errors.Is(err, ErrNoCluster) {
		t.Errorf("second Clear: %v, want ErrNoCluster", err)
	}
}

func TestStartReplacesADeadCluster(t *testing.T) {
	dir := shortDir(t)
	plant(t, dir, deadInfo)
	stop, ended := serveIn(t, dir)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestForeignDirectories(t *testing.T) {
	for _, c := range []struct {
		info string
		want error
	}{
		{`{"format":7,"servers":"of another kind"}`, ErrVersion},
		{`{"hello":1}`, ErrDir},
		{`not json`, ErrDir},
		{`{"format":1}`, ErrDir},
		{`{"format":1,"servers":3}`, ErrDir},
	} {
		dir := shortDir(t)
		plant(t, dir, c.info)
		if _, err := find(t.Context(), dir); !errors.Is(err, c.want) {
			t.Errorf("%s: Connect: %v, want %v", c.info, err, c.want)
		}
		if err := startOnly(t.Context(), dir); !errors.Is(err, c.want) {
			t.Errorf("%s: Start: %v, want %v", c.info, err, c.want)
		}
	}
}

func TestUnfitDirectories(t *testing.T) {
	serve := func(dir string) error { return startOnly(t.Context(), dir) }
	dir := shortDir(t)
	_ = os.MkdirAll(dir, 0o700)
	_ = os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600)
	if err := serve(dir); !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("directory with other files: %v", err)
	}
	if err := serve(filepath.Join(dir, strings.Repeat("x", 120))); !errors.Is(err, ErrDir) {
		t.Errorf("long path: %v", err)
	}
	if err := serve(filepath.Join(dir, "thesis.tex")); !errors.Is(err, ErrDir) {
		t.Errorf("a file: %v", err)
	}
	if _, err := find(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, ErrNoCluster) {
		t.Errorf("no directory: %v", err)
	}
}

func TestControlSocketRefusesNonsense(t *testing.T) {
	dir := shortDir(t)
	stop, ended := serveIn(t, dir)
	for _, line := range []string{"\n", "{}\n", "{\"op\":\"explode\"}\n", strings.Repeat("x", requestBytesMax+1), "[1,2"} {
		c, err := net.Dial("unix", filepath.Join(dir, controlFile))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(line))
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		b := make([]byte, 256)
		n, _ := c.Read(b)
		if n > 0 && !strings.Contains(string(b[:n]), "unknown request") {
			t.Errorf("%.20q: answer %q", line, b[:n])
		}
		c.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Whatever cluster.json holds, it is an error or a cluster within bounds.
func FuzzDecodeInfo(f *testing.F) {
	f.Add([]byte(deadInfo))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"servers":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := decodeInfo("cluster.json", b)
		if err == nil && (info.Format != Format || len(info.Servers) < 1 || len(info.Servers) > MaxServers) {
			t.Errorf("accepted %+v", info)
		}
		if err != nil && !errors.Is(err, ErrDir) && !errors.Is(err, ErrVersion) {
			t.Errorf("untyped error %v", err)
		}
	})
}

// TestDirIsTakenWhileItGoes: processes take the same new directory in turn, while the one before
// removes it.
func TestDirIsTakenWhileItGoes(t *testing.T) {
	dir := filepath.Join(trialDir(t), "run")
	var wg sync.WaitGroup
	var taken [3]int
	for i := range taken {
		wg.Go(func() {
			for range 200 {
				switch d, err := openDir(t.Context(), dir); {
				case err == nil:
					taken[i]++
					d.close()
				case !errors.Is(err, ErrBusy):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("taken %v times of 200", taken)
}

// endingConn ends something when the deadline of its reads is lifted, and lets what that sets off go first.
type endingConn struct {
	net.Conn
	end  func()
	past chan struct{} // a deadline was set after that
	done bool
}

func (c *endingConn) SetReadDeadline(at time.Time) error {
	if at.IsZero() {
		c.done = true
		c.end()
		select {
		case <-c.past:
		case <-time.After(100 * time.Millisecond):
		}
		return c.Conn.SetReadDeadline(at)
	}
	err := c.Conn.SetReadDeadline(at)
	if c.done {
		close(c.past)
	}
	return err
}

// TestWatcherComesWhileTheClusterEnds: a process attaches when the others have been told that the cluster ends.
// It is told, too, and the supervisor does not wait for it to go.
func TestWatcherComesWhileTheClusterEnds(t *testing.T) {
	for _, why := range []error{nil, fmt.Errorf("%w: data server 1 is gone", ErrLost)} {
		s := &supervisor{}
		s.mu.over = why
		life, end := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.serveConn(life, &endingConn{Conn: theirs, end: end, past: make(chan struct{})})
		}()
		in := bufio.NewReader(ours)
		if r, err := exchange(ours, in, controlRequest{Op: opWatch}); err != nil || r.Info == nil {
			t.Fatal(r, err)
		}
		_ = ours.SetReadDeadline(time.Now().Add(testseed.Patience()))
		want := ErrStopped
		if why != nil {
			want = why
		}
		if r, err := readReply(in); err != nil || r.Lost != want.Error() {
			t.Errorf("heard %v, %v; want %q", r, err, want)
		}
		ours.Close()
		<-served
	}
}
