package rdmatest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/rdmatest"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
)

// roleEnv makes this binary the other process of a benchmark: the name of a
// provider to serve over, or echo.
const roleEnv = "DRTMX_FABRICS_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fabrics are the providers that are measured, each with the memory it serves.
var fabrics = []struct {
	name     string
	kind     mem.Kind
	open     func() (rdma.Provider, error)
	inside   bool // the server is in this process
	overTCP  bool // the bound is an echo over TCP, not a copy
	perTurn  int
	listenAt string
}{
	{"inproc", mem.Auto, func() (rdma.Provider, error) { return inproc.New(inproc.Options{}), nil }, true, false, 20000, ""},
	{"shm", mem.Shared, func() (rdma.Provider, error) { return shm.New(shm.Options{}) }, false, false, 20000, "@drtmx-fabrics-"},
	{"tcp", mem.Auto, func() (rdma.Provider, error) { return tcp.New(tcp.Options{}) }, false, true, 100, ""},
	{"verbs", mem.Shared, func() (rdma.Provider, error) {
		return verbs.New(verbs.Options{Device: os.Getenv("DRTMX_VERBS_DEVICE")})
	}, false, true, 100, ""},
}

// play runs a role until standard input ends.
func play(role string) error {
	var addr string
	var closer io.Closer
	if role == "echo" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go echoAll(l)
		addr, closer = l.Addr().String(), l
	}
	for _, f := range fabrics {
		if f.name != role {
			continue
		}
		p, err := f.open()
		if err != nil {
			return err
		}
		at := f.listenAt
		if at != "" {
			at += fmt.Sprint(os.Getpid())
		}
		e, err := serveRegion(p, at, f.kind)
		if err != nil {
			return err
		}
		addr, closer = e.Addr(), e
	}
	fmt.Println(addr)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return closer.Close()
}

// fabricBytes is the region that is read.
const fabricBytes = 1 << 20

func serveRegion(p rdma.Provider, addr string, k mem.Kind) (rdma.Endpoint, error) {
	e, err := p.Listen(addr, rdma.ListenOptions{})
	if err != nil {
		return nil, err
	}
	m, err := mem.New(mem.Options{Kind: k, SegmentBytes: fabricBytes, MaxBytes: fabricBytes})
	if err != nil {
		return nil, err
	}
	rdmatest.FillPattern(m, 0, m.Size())
	if _, err := e.Register(m, rdma.AccessRead); err != nil {
		return nil, err
	}
	return e, e.Serve(rdmatest.Echo)
}

// echoAll sends back what it reads, a goroutine for each connection.
func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// startRole runs a role in another process and returns its address, or the
// reason why it has none.
func startRole(b *testing.B, role string) (string, error) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		return "", fmt.Errorf("%s", strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(addr), nil
}

// fabricConns opens n connections to a provider, or returns the reason why it
// cannot.
func fabricConns(b *testing.B, i, n int) ([]rdma.Conn, error) {
	b.Helper()
	f := fabrics[i]
	p, err := f.open()
	if err != nil {
		return nil, err
	}
	var addr string
	if f.inside {
		e, err := serveRegion(p, "", f.kind)
		if err != nil {
			return nil, err
		}
		b.Cleanup(func() { e.Close() })
		addr = e.Addr()
	} else if addr, err = startRole(b, f.name); err != nil {
		return nil, err
	}
	var conns []rdma.Conn
	for range n {
		c, err := p.Dial(context.Background(), addr)
		if err != nil {
			return nil, err
		}
		b.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	return conns, nil
}

// reader does rounds of n READs of 64 bytes at changing places.
func reader(b *testing.B, c rdma.Conn, n int) func() {
	var batch rdma.Batch
	buf := make([]uint64, 8*n)
	ctx, at := context.Background(), uint64(0)
	return func() {
		batch.Reset()
		for i := range n {
			batch.Read(1, at%fabricBytes, buf[i*8:i*8+8])
			at += 4160
			at &^= 63
		}
		if err := rdma.Do(ctx, c, &batch); err != nil {
			b.Error(err)
		}
	}
}

// copier copies as much within the process.
func copier(n int) func() {
	src, dst := make([]uint64, fabricBytes/8), make([]uint64, 8*n)
	at := 0
	return func() {
		for i := range n {
			copy(dst[i*8:i*8+8], src[at:at+8])
			at = (at + 520) &^ 7 % len(src)
		}
	}
}

// pinger sends n times 64 bytes to an echo and awaits them.
func pinger(b *testing.B, addr string, n int) func() {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	out, in := make([]byte, 64*n), make([]byte, 64*n)
	return func() {
		if _, err := c.Write(out); err != nil {
			b.Error(err)
		} else if _, err := io.ReadFull(c, in); err != nil {
			b.Error(err)
		}
	}
}

// byTurns runs functions in turn, so that noise of the machine affects all, and
// returns the nanoseconds per call of each, from the fastest turns.
func byTurns(b *testing.B, perTurn int, fs ...func()) []float64 {
	best := make([]time.Duration, len(fs))
	for turn := 0; b.Loop(); turn++ {
		for i, f := range fs {
			start := time.Now()
			for range perTurn {
				f()
			}
			if d := time.Since(start); turn == 0 || d < best[i] {
				best[i] = d
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	ns := make([]float64, len(fs))
	for i := range fs {
		ns[i] = float64(best[i]) / float64(perTurn)
	}
	return ns
}

// BenchmarkFabrics measures READs of 64 bytes, single and in a batch of 16, on
// every fabric and compares them with a bound: copying as much memory, or for
// fabrics over a network a bare echo of as many bytes over TCP. Servers are
// other processes, except for inproc.
func BenchmarkFabrics(b *testing.B) {
	for i, f := range fabrics {
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/batch=%d", f.name, n), func(b *testing.B) {
				conns, err := fabricConns(b, i, 1)
				if err != nil {
					fmt.Printf("%s: not measured: %v\n", f.name, err)
					b.SkipNow()
				}
				bound, unit := copier(n), "ns/memcpy"
				if f.overTCP {
					addr, err := startRole(b, "echo")
					if err != nil {
						b.Fatal(err)
					}
					bound, unit = pinger(b, addr, n), "ns/echo"
				}
				ns := byTurns(b, f.perTurn, reader(b, conns[0], n), bound)
				b.ReportMetric(ns[0]/float64(n), "ns/READ")
				b.ReportMetric(ns[0], "ns/round")
				b.ReportMetric(ns[1], unit)
				b.ReportMetric(ns[0]/ns[1], "ratio")
			})
		}
	}
}

// BenchmarkManyCallers measures the throughput of READs of 64 bytes over TCP,
// by 16 callers with batches of 16. GETs of as many bytes from Redis with the
// same pipelining give the scale; a GET does more work than a READ.
func BenchmarkManyCallers(b *testing.B) {
	const callers, depth, perTurn = 16, 16, 200
	all := func(fs []func()) func() {
		return func() {
			var wg sync.WaitGroup
			for _, f := range fs {
				wg.Go(func() {
					for range perTurn {
						f()
					}
				})
			}
			wg.Wait()
		}
	}
	conns, err := fabricConns(b, 2, callers)
	if err != nil {
		b.Fatal(err)
	}
	var reads, gets, pings []func()
	for _, c := range conns {
		reads = append(reads, reader(b, c, depth))
	}
	echo, err := startRole(b, "echo")
	if err != nil {
		b.Fatal(err)
	}
	for range callers {
		pings = append(pings, pinger(b, echo, depth))
	}
	contenders := []func(){all(reads), all(pings)}
	if addr, err := startRedis(b); err != nil {
		fmt.Printf("Redis: not measured: %v\n", err)
	} else {
		for range callers {
			gets = append(gets, getter(b, addr, depth))
		}
		contenders = append(contenders, all(gets))
	}
	ns := byTurns(b, 1, contenders...)
	rate := func(i int) float64 { return callers * depth * perTurn / ns[i] * 1e9 }
	b.ReportMetric(rate(0), "READs/s")
	b.ReportMetric(rate(1), "echoes/s")
	if len(ns) > 2 {
		b.ReportMetric(rate(2), "GETs/s")
		b.ReportMetric(rate(0)/rate(2), "READ/GET")
	}
}

// startRedis starts a Redis of one thread, without persistence, that holds one
// value of 64 bytes.
func startRedis(b *testing.B) (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return "", err
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 100 {
		var c net.Conn
		if c, err = net.Dial("tcp", addr); err == nil {
			defer c.Close()
			fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$8\r\nkeykeyke\r\n$64\r\n%064d\r\n", 1)
			var ok [5]byte
			_, err = io.ReadFull(c, ok[:])
			return addr, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", err
}

// getter sends n GETs to Redis and awaits the values.
func getter(b *testing.B, addr string, n int) func() {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	out := []byte(strings.Repeat("*2\r\n$3\r\nGET\r\n$8\r\nkeykeyke\r\n", n))
	in := make([]byte, n*len("$64\r\n\r\n")+n*64)
	return func() {
		if _, err := c.Write(out); err != nil {
			b.Error(err)
		} else if _, err := io.ReadFull(c, in); err != nil || in[0] != '$' {
			b.Errorf("Redis answers %q, %v", in[:16], err)
		}
	}
}
