package shm

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
	"drtmx/rdma/rdmatest"
)

// TestSilentSocketsKeepNobodyOut: a client that connects any number of times
// and sends nothing does not delay the dials of other clients.
func TestSilentSocketsKeepNobodyOut(t *testing.T) {
	e := serve(t, newProvider(t, Options{}), rdmatest.Echo)
	for range provide.MaxGuestsEach + 100 {
		nc, err := net.Dial(network, e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	least := time.Hour // one dial may be late on a busy machine
	for range 20 {
		start := time.Now()
		c, err := newProvider(t, Options{}).Dial(testContext(t), e.Addr()) // a link of its own
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Since(start))
		echo(t, c, "let in")
		c.Close()
	}
	if least > controlTimeout/2 {
		t.Errorf("a dial takes %v", least)
	}
}

// TestIdleConnectionGivesPagesBack: what a large call needed is free a little
// later, although the connection says nothing more.
func TestIdleConnectionGivesPagesBack(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	dialled, err := p.Dial(testContext(t), e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	c := dialled.(*conn)
	pages := func() int64 {
		ep := e
		ep.mu.Lock()
		defer ep.mu.Unlock()
		for _, l := range ep.mu.peers {
			var st unix.Stat_t
			if err := unix.Fstat(int(l.seg.File().Fd()), &st); err != nil {
				t.Fatal(err)
			}
			return st.Blocks * 512
		}
		t.Fatal("the server knows no link")
		return 0
	}
	large := make([]byte, rdma.MaxMessageBytes)
	for i := range large {
		large[i] = byte(i)
	}
	for range 2 {
		resp, err := rdma.Call(testContext(t), c, large, nil)
		if err != nil || !bytes.Equal(resp, large) {
			t.Fatalf("%d bytes, %v", len(resp), err)
		}
		if pages() < 2*rdma.MaxMessageBytes {
			t.Fatalf("%d bytes are in use after a large call", pages())
		}
		for deadline := time.Now().Add(testseed.Patience()); pages() > 4*provide.KeepBytes; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("an idle connection keeps %d bytes after a large call", pages())
			}
		}
		echo(t, c, "still here")
	}
}

// TestDataServersAlwaysGetIn: clients that hold every link there is keep no
// data server out.
func TestDataServersAlwaysGetIn(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	const links = 3
	e.mu.Lock()
	e.maxLinks = links
	e.mu.Unlock()
	dial := func(p rdma.Provider) (rdma.Conn, error) {
		c, err := p.Dial(testContext(t), e.Addr())
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	for range links {
		if _, err := dial(newProvider(t, Options{})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dial(newProvider(t, Options{})); !errors.Is(err, rdma.ErrBusy) {
		t.Fatalf("one client more: %v", err)
	}
	c, err := dial(p.As(rdma.Identity{Role: rdma.RoleServer}))
	if err != nil {
		t.Fatalf("a data server is kept out: %v", err)
	}
	echo(t, c, "let in")
}

// TestRegionOfManyFiles: a region of more files than one message carries can be
// read whole, by clients from before and after it has grown.
func TestRegionOfManyFiles(t *testing.T) {
	const segments = 64
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	m, err := sharedRegion(mem.Options{SegmentBytes: pageBytes, MaxBytes: segments * pageBytes})
	if err != nil {
		t.Fatal(err)
	}
	key, err := e.Register(m, rdma.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(p *Provider) rdma.Conn {
		c, err := p.Dial(testContext(t), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	early := dial(p)
	read := func(c rdma.Conn, off uint64) error {
		var b rdma.Batch
		b.Read(key, off, make([]uint64, 8))
		err := rdma.Do(testContext(t), c, &b)
		if i, ok := rdmatest.HasPattern(b.WRs[0].Buf, off); err == nil && !ok {
			t.Errorf("word %d at %#x is wrong", i, off)
		}
		return err
	}
	if err := read(early, pageBytes); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("past the end: %v", err)
	}
	for m.Size() < m.MaxBytes() {
		if _, err := m.Grow(); err != nil {
			t.Fatal(err)
		}
	}
	rdmatest.FillPattern(m, 0, m.Size())
	if n := len(m.Files(0)); n <= 2*filesMax {
		t.Fatalf("the region has %d files, want more than two messages carry", n)
	}
	late := dial(newProvider(t, Options{}))
	for _, c := range []rdma.Conn{early, late} {
		if err := read(c, m.MaxBytes()-64); err != nil {
			t.Errorf("the end: %v", err)
		}
		for off := uint64(0); off < m.MaxBytes(); off += pageBytes {
			if err := read(c, off); err != nil {
				t.Errorf("at %#x: %v", off, err)
			}
		}
		if err := read(c, m.MaxBytes()); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("past the maximum: %v", err)
		}
	}
}

// TestSecondFetchKeepsTheMapping: a region that the server sends once more
// does not replace the mapping that another goroutine may be reading.
func TestSecondFetchKeepsTheMapping(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	m, err := sharedRegion(mem.Options{SegmentBytes: pageBytes, MaxBytes: pageBytes})
	if err != nil {
		t.Fatal(err)
	}
	key, err := e.Register(m, rdma.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	dialled, err := p.Dial(testContext(t), e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	l := dialled.(*conn).link
	first := l.region(key)
	if first == nil { // registered after the link was made
		wr := rdma.WR{Op: rdma.OpRead, RKey: key, Buf: make([]uint64, 1)}
		if err := l.fetch(testContext(t), &wr); err != nil || wr.Status != rdma.StatusOK {
			t.Fatal(wr.Status, err)
		}
		first = l.region(key)
	}
	if _, err := l.request(testContext(t), message{kind: msgAsk, rkey: key}); err != nil {
		t.Fatal(err)
	}
	if l.region(key) != first {
		t.Error("the second fetch replaced the mapping")
	}
}
