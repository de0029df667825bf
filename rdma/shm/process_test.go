package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// Tests between real processes.

var patience = testseed.Patience()

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func echo(t testing.TB, c rdma.Conn, msg string) {
	t.Helper()
	got, err := rdma.Call(testContext(t), c, []byte(msg), nil)
	if err != nil || string(got) != msg {
		t.Fatalf("echo of %q: %q, %v", msg, got, err)
	}
}

func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestServerKilledDuringCallsAndRestarted(t *testing.T) {
	p := newProvider(t, Options{})
	addr := socketPath(t)
	ctx := testContext(t)
	for round := range 3 {
		kid := startServer(t, addr, "")
		const callers = 8
		var wg sync.WaitGroup
		var conns []*conn
		for i := range callers {
			c := dial(t, p, addr)
			conns = append(conns, c)
			echo(t, c, "warm")
			msg := "hang"
			if i == callers-1 {
				time.Sleep(10 * time.Millisecond)
				msg = "die"
			}
			if err := c.StartCall(ctx, []byte(msg)); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if _, err := c.FinishCall(ctx, nil); !errors.Is(err, rdma.ErrPeerDown) {
					t.Errorf("round %d: call to a server that is killed: %v", round, err)
				}
			})
		}
		wg.Wait()
		for _, c := range conns {
			var b rdma.Batch
			b.Read(1, 0, make([]uint64, 1))
			if err := rdma.Do(ctx, c, &b); !errors.Is(err, rdma.ErrPeerDown) {
				t.Errorf("READ from a dead server: %v", err)
			}
			if _, err := rdma.Call(ctx, c, []byte("x"), nil); !errors.Is(err, rdma.ErrPeerDown) {
				t.Errorf("call to a dead server: %v", err)
			}
			if round%2 == 0 { // otherwise dialling must cope with their link
				c.Close()
			}
		}
		_ = kid.cmd.Wait()
		if _, err := p.Dial(ctx, addr); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("dial where nobody listens: %v", err)
		}
	}
}

func TestKilledClientsAreNoticed(t *testing.T) {
	addr := freeAddr()
	server := startServer(t, addr, "")
	p := newProvider(t, Options{})
	mine := dial(t, p, addr)
	for range 3 {
		kid := start(t, "idle "+addr+" 20 hang")
		kid.expect("idle")
		echo(t, mine, "between")
		kid.kill()
	}
	eventually(t, "OnDisconnect for 60 connections", func() bool {
		server.tell("gone")
		return server.line() == "60"
	})
	echo(t, mine, "after")
}

func TestEightClientProcesses(t *testing.T) {
	addr := freeAddr()
	server := startServer(t, addr, "pollers=2")
	const clients, calls = 8, 500
	var kids []*child
	for range clients {
		kids = append(kids, start(t, fmt.Sprintf("client %s %d", addr, calls)))
	}
	for _, k := range kids {
		k.expect("done")
	}
	server.tell("rpcs")
	if got := server.line(); got != strconv.Itoa(clients*calls) {
		t.Errorf("the server counts %s RPCs, want %d", got, clients*calls)
	}
}

func TestThousandIdleConnections(t *testing.T) {
	addr := freeAddr()
	server := startServer(t, addr, "")
	kid := start(t, "idle "+addr+" 1000")
	kid.expect("idle")
	c := dial(t, newProvider(t, Options{}), addr)
	for i := range 100 {
		echo(t, c, strconv.Itoa(i))
	}
	eventually(t, "an idle server uses no processor time", func() bool {
		before := server.cpu()
		time.Sleep(200 * time.Millisecond)
		return server.cpu()-before <= 100*time.Millisecond
	})
	kid.kill()
	eventually(t, "OnDisconnect for 1000 connections", func() bool {
		server.tell("gone")
		return server.line() == "1000"
	})
}

func TestOverlappingCallsToSeveralServers(t *testing.T) {
	p := newProvider(t, Options{})
	ctx := testContext(t)
	var conns []*conn
	for range 4 {
		addr := freeAddr()
		startServer(t, addr, "")
		conns = append(conns, dial(t, p, addr))
	}
	for i := range 200 {
		for j, c := range conns {
			msg := "later"
			if i%2 == 0 {
				msg = fmt.Sprint(i, j)
			}
			if err := c.StartCall(ctx, []byte(msg)); err != nil {
				t.Fatal(err)
			}
		}
		for j, c := range conns {
			want := "later"
			if i%2 == 0 {
				want = fmt.Sprint(i, j)
			}
			if got, err := c.FinishCall(ctx, nil); err != nil || string(got) != want {
				t.Fatalf("answer %q, %v, want %q", got, err, want)
			}
		}
	}
}

func TestServerGrowsUnderAClientProcess(t *testing.T) {
	addr := freeAddr()
	server := startServer(t, addr, "")
	c := dial(t, newProvider(t, Options{}), addr)
	read := func(at uint64) error {
		var b rdma.Batch
		b.Read(1, at, make([]uint64, 8))
		return rdma.Do(testContext(t), c, &b)
	}
	if err := read(1 << 20); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("READ past the end: %v", err)
	}
	server.tell("grow")
	server.expect(strconv.Itoa(2 << 20))
	if err := read(1 << 20); err != nil {
		t.Errorf("READ of what the region has grown by: %v", err)
	}
}

func TestConnectionsShareOneMapping(t *testing.T) {
	addr := freeAddr()
	startServer(t, addr, "")
	p := newProvider(t, Options{})
	for range 64 {
		echo(t, dial(t, p, addr), "x")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(maps), "memfd:drtmx-"+addr); n != 1 {
		t.Errorf("64 connections have %d mappings of the server's region", n)
	}
}
