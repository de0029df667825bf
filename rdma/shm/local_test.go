package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// serve opens an endpoint in this process.
func serve(t testing.TB, p *Provider, h rdma.Handler) *endpoint {
	t.Helper()
	e, err := p.Listen(freeAddr(), rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.Serve(h); err != nil {
		t.Fatal(err)
	}
	return e.(*endpoint)
}

func TestClientCannotWriteARegion(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	r, err := sharedRegion(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.FillPattern(r, 0, r.Size())
	if _, err := e.Register(r, rdma.AccessRead); err != nil {
		t.Fatal(err)
	}
	// A client of its own, which keeps what it is sent.
	nc, err := net.Dial(network, e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := socket{nc.(*net.UnixConn)}
	page, err := mem.NewControl("test", pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.send(&message{kind: msgHello, version: wireVersion, role: rdma.RoleLoader}, page.File()); err != nil {
		t.Fatal(err)
	}
	_, welcome, err := s.receive(true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFiles(welcome)
	m, files, err := s.receive(true)
	if err != nil || m.kind != msgRegion || len(files) != 1 {
		t.Fatalf("region: %+v, %d files, %v", m, len(files), err)
	}
	defer closeFiles(files)
	for name, f := range map[string]*os.File{"region": files[0], "poller page": welcome[1]} {
		t.Run(name, func(t *testing.T) { cannotWrite(t, f) })
	}
	if i, ok := rdmatest.HasPattern(mustRead(t, r, 64), 0); !ok {
		t.Errorf("word %d was written", i)
	}
}

func mustRead(t *testing.T, r *mem.Region, words int) []uint64 {
	t.Helper()
	buf := make([]uint64, words)
	if !r.Read(0, buf) {
		t.Fatal("region is too small")
	}
	return buf
}

// cannotWrite tries every way to write a file the server has sent.
func cannotWrite(t *testing.T, f *os.File) {
	t.Helper()
	tryFD := func(how string, fd int) {
		if b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			t.Errorf("%s: mapped writable", how)
			_ = unix.Munmap(b)
		}
		if b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ, unix.MAP_SHARED); err == nil {
			if unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE) == nil {
				t.Errorf("%s: made a mapping writable", how)
			}
			_ = unix.Munmap(b)
		}
		if _, err := unix.Pwrite(fd, []byte("overwritten"), 0); err == nil {
			t.Errorf("%s: pwrite", how)
		}
		for _, n := range []int64{0, 256 << 20} {
			if unix.Ftruncate(fd, n) == nil {
				t.Errorf("%s: truncated to %d bytes", how, n)
			}
		}
		if unix.Fallocate(fd, 0, 0, 256<<20) == nil {
			t.Errorf("%s: filled with 256 MiB", how)
		}
		if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageBytes) == nil {
			t.Errorf("%s: punched a hole", how)
		}
	}
	tryFD("as received", int(f.Fd()))
	// The owner of the file may open it anew, and change its permissions first;
	// the seals still hold.
	_ = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), 0o600)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDWR, 0)
	if err == nil {
		defer unix.Close(fd)
		tryFD("reopened", fd)
	}
}

func TestListenAtSocketFiles(t *testing.T) {
	p := newProvider(t, Options{})
	path := socketPath(t)
	e, err := p.Listen(path, rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket file: mode %v, %v", st.Mode(), err)
	}
	_, err = p.Listen(path, rdma.ListenOptions{})
	if !errors.Is(err, rdma.ErrAddress) || strings.Contains(err.Error(), "\n") {
		t.Errorf("second server: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("a closed endpoint leaves its socket file")
	}

	// What a killed server leaves behind.
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	e, err = p.Listen(path, rdma.ListenOptions{})
	if err != nil {
		t.Fatalf("stale socket file: %v", err)
	}
	e.Close()

	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Listen(path, rdma.ListenOptions{}); !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("listen at a plain file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "data" {
		t.Error("a plain file was removed")
	}
	for _, addr := range []string{"", "@", strings.Repeat("x", 108), "a\x00b", "/nowhere/at/all"} {
		if _, err := p.Listen(addr, rdma.ListenOptions{}); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("listen at %q: %v", addr, err)
		}
		if _, err := p.Dial(context.Background(), addr); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("dial %q: %v", addr, err)
		}
	}
}

func TestGarbageHandshakes(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	ctx := testContext(t)
	src := rng.New(rdmatest.Seed(t))
	for i := range 50 {
		nc, err := net.Dial(network, e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close() // some say nothing for as long as the test runs
		if i%5 == 0 {
			continue
		}
		b := make([]byte, 1+src.Uint64()%200)
		for j := range b {
			b[j] = byte(src.Uint64())
		}
		_, _ = nc.Write(b)
	}
	// A hello whose descriptor is not a wake page: one that could be truncated
	// under the server, or is of another size.
	f, err := os.CreateTemp(t.TempDir(), "page")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_ = f.Truncate(pageBytes)
	large, err := mem.NewControl("large", 2*pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, files := range [][]*os.File{{}, {f}, {large.File()}, {f, f, f}} {
		nc, err := net.Dial(network, e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		s := socket{nc.(*net.UnixConn)}
		if err := s.send(&message{kind: msgHello, version: wireVersion, role: rdma.RoleLoader}, files...); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.receive(true); err == nil {
			t.Errorf("a hello with %d descriptors was welcomed", len(files))
		}
		s.Close()
	}
	c, err := p.Dial(ctx, e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	echo(t, c, "still here")
	c.Close()
	start := time.Now()
	e.Close()
	if d := time.Since(start); d > controlTimeout/2 {
		t.Errorf("Close took %v with silent sockets", d)
	}
}

func TestAnotherVersionIsRefused(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	nc, err := net.Dial(network, e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := socket{nc.(*net.UnixConn)}
	page, err := mem.NewControl("test", pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.send(&message{kind: msgHello, version: wireVersion + 1, role: rdma.RoleLoader}, page.File()); err != nil {
		t.Fatal(err)
	}
	m, _, err := s.receive(true)
	if err != nil || m.kind != msgRefuse || !errors.Is(m.reason.err(), rdma.ErrUnsupported) {
		t.Errorf("answer %+v, %v", m, err)
	}
}

// TestHostileClientHurtsItself scribbles over everything a client can write
// while honest ones, over the same link and over another, are served.
func TestHostileClientHurtsItself(t *testing.T) {
	honest, hostile := newProvider(t, Options{}), newProvider(t, Options{})
	var over sync.Map
	e := serve(t, honest, func(q *rdma.Request) {
		if len(q.Body) > rdma.MaxMessageBytes {
			over.Store(q.Peer, len(q.Body))
		}
		_ = q.Reply(q.Body)
	})
	good := dial(t, honest, e.Addr())
	sibling := dial(t, hostile, e.Addr())
	src := rng.New(rdmatest.Seed(t))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				echo(t, good, "good")
			}
		}
	})
	for i := range 200 {
		c := dial(t, hostile, e.Addr())
		echo(t, c, "hello")
		// Words of its slot, mostly the header, and the doorbells of all.
		for range 20 {
			w := 0
			if src.Uint64()%4 == 0 {
				w = int(src.Uint64() % 64)
			}
			v := src.Uint64()
			switch src.Uint64() % 4 {
			case 0:
				v = uint64(c.seq+1) | v<<32 // the right sequence, any length
			case 1:
				v = uint64(c.seq+1) | (rdma.MaxMessageBytes+v%2)<<32
			}
			c.request.span.Store(w, v)
			c.response.span.Store(w, src.Uint64())
			c.link.requests.Store(int(src.Uint64()%doorbellWords), src.Uint64())
			c.link.requests.Or(c.word, c.mask)
			c.bell.woken.Store(0)
			c.bell.ring()
		}
		c.Close()
		if i%20 == 0 {
			echo(t, sibling, "sibling")
		}
	}
	close(stop)
	wg.Wait()
	over.Range(func(peer, n any) bool {
		t.Errorf("peer %v got a request of %v bytes through", peer, n)
		return true
	})
	echo(t, good, "at the end")
	echo(t, sibling, "at the end")
}

// TestViolationEndsTheConnectionOnly checks what the client of a violation,
// and its neighbour on the link, see.
func TestViolationEndsTheConnectionOnly(t *testing.T) {
	p := newProvider(t, Options{})
	gone := make(chan rdma.PeerID, 10)
	e, err := p.Listen(freeAddr(), rdma.ListenOptions{OnDisconnect: func(id rdma.PeerID) { gone <- id }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Serve(rdmatest.Echo); err != nil {
		t.Fatal(err)
	}
	bad, good := dial(t, p, e.Addr()), dial(t, p, e.Addr())
	ctx := testContext(t)
	bad.seq = 7 // not the successor of the last
	if _, err := rdma.Call(ctx, bad, []byte("x"), nil); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("call out of sequence: %v", err)
	}
	select {
	case id := <-gone:
		if id != 1 {
			t.Errorf("OnDisconnect for peer %d", id)
		}
	case <-ctx.Done():
		t.Error("no OnDisconnect")
	}
	echo(t, good, "unharmed")
	bad.Close()
	eventually(t, "reuse of the slot", func() bool {
		again := dial(t, p, e.Addr())
		defer again.Close()
		echo(t, again, "fresh")
		return again.slot == bad.slot
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not counted under the race detector")
	}
	p := newProvider(t, Options{})
	addr := freeAddr()
	startServer(t, addr, "")
	c := dial(t, p, addr)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, resp := make([]byte, 100), make([]byte, 0, 100)
	var b rdma.Batch
	var buf [8]uint64
	var err error
	call := func() {
		if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		b.Reset()
		b.Read(1, 64, buf[:])
		if err = rdma.Do(ctx, c, &b); err != nil {
			t.Fatal(err)
		}
	}
	call()
	read()
	if n := testing.AllocsPerRun(2000, call); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
	if n := testing.AllocsPerRun(2000, read); n != 0 {
		t.Errorf("a READ allocates %v times", n)
	}
	// The handler's side, and many waiters.
	e := serve(t, p, rdmatest.Echo)
	var wg sync.WaitGroup
	const callers, calls = 8, 2000
	before := mallocs()
	for range callers {
		c := dial(t, p, e.Addr())
		wg.Go(func() {
			req, resp := make([]byte, 100), make([]byte, 0, 100)
			for range calls {
				var err error
				if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := mallocs() - before; n > callers*calls/10 {
		t.Errorf("%d calls allocate %d times on both sides together", callers*calls, n)
	}
}

func TestReconnectingLeaksNoDescriptors(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	cycle := func() {
		c, err := p.Dial(testContext(t), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		echo(t, c, "x")
		c.Close()
	}
	cycle()
	before := count()
	for range 50 {
		cycle()
	}
	// The poller pages' descriptors wait for the garbage collector.
	eventually(t, "descriptors of closed links to go", func() bool {
		collect()
		return count() <= before+5
	})
}

func TestPeersOfOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: only root can become another user")
	}
	p := newProvider(t, Options{})
	addr := freeAddr()
	refused := make(chan error, 16)
	e, err := p.Listen(addr, rdma.ListenOptions{OnRefuse: func(reason error) { refused <- reason }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Serve(rdmatest.Echo); err != nil {
		t.Fatal(err)
	}
	kid := startAs(t, "client "+addr+" 1", &syscall.Credential{Uid: 65534, Gid: 65534})
	if got := kid.line(); !strings.HasPrefix(got, "error:") {
		t.Errorf("a client of another user says %q", got)
	} else {
		t.Log(got)
	}
	if reason := <-refused; !errors.Is(reason, errPeerUser) {
		t.Errorf("refused because of %v, want %v", reason, errPeerUser)
	}
	if got := e.(rdma.Auditor).Refusals()[0]; got != (rdma.Refusal{Reason: "other_user", Count: 1}) {
		t.Errorf("refusals: %+v", got)
	}
}

func TestServersOfOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: only root can start a server of another user")
	}
	addr := freeAddr()
	kid := startAs(t, "server "+addr, &syscall.Credential{Uid: 4242, Gid: 4242})
	kid.expect("listening")
	c, err := newProvider(t, Options{}).Dial(t.Context(), addr)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, errPeerUser) || !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("dialling a server of another user: %v, want %v", err, errPeerUser)
	}
}

// TestStoreThroughAMappingFaults: a client whose own code stores to what it has
// mapped is stopped by its processor, not by good manners. The fault can be
// survived; client, connection and server go on as before.
func TestStoreThroughAMappingFaults(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector atomics are in C, where Go survives no fault; run without it to check")
	}
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	r, err := sharedRegion(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.FillPattern(r, 0, r.Size())
	k, err := e.Register(r, rdma.AccessRead|rdma.AccessWrite|rdma.AccessAtomic)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, p, e.Addr())
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	if err := rdma.Do(testContext(t), c, &b); err != nil {
		t.Fatal(err)
	}
	mapped := c.link.region(k)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for how, store := range map[string]func(s mem.Span){
		"store":            func(s mem.Span) { s.Store(0, 1) },
		"compare-and-swap": func(s mem.Span) { s.CompareAndSwap(0, rdmatest.Pattern(64), 1) },
		"add":              func(s mem.Span) { s.Add(0, 1) },
		"copy":             func(s mem.Span) { s.CopyIn([]uint64{1}) },
		"zero":             func(s mem.Span) { s.Zero() },
	} {
		fault := func() (fault any) {
			defer func() { fault = recover() }()
			store(mapped.MustSpan(64, 8))
			return nil
		}()
		if err, ok := fault.(runtime.Error); !ok || !strings.Contains(err.Error(), "fault address") && !strings.Contains(err.Error(), "invalid memory address") {
			t.Errorf("%s through a read-only mapping: %v, want a fault", how, fault)
		}
	}
	if err := rdma.Do(testContext(t), c, &b); err != nil {
		t.Fatal(err)
	}
	if i, ok := rdmatest.HasPattern(b.WRs[0].Buf, 64); !ok {
		t.Errorf("word %d of the region has changed", i)
	}
	// The server's agent may: it is granted.
	b.Reset()
	b.Write(k, 64, []uint64{1})
	if err := rdma.Do(testContext(t), c, &b); err != nil || mapped.MustSpan(64, 8).Load(0) != 1 {
		t.Errorf("WRITE: %v; the word is %#x", err, mapped.MustSpan(64, 8).Load(0))
	}
	echo(t, c, "still here")
	echo(t, dial(t, newProvider(t, Options{}), e.Addr()), "and others")
}
