package server_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	ports "drtmx/internal/cluster"
	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// Data servers and clients as processes of their own, joined by shared memory
// or an RDMA device.
// The test binary is started again with a role in the environment.

const (
	roleEnv   = "DRTMX_SERVER_TEST_ROLE"
	deviceEnv = "DRTMX_VERBS_DEVICE" // the RDMA device to test on
)

// role is what a process of the test is to be.
type role struct {
	Kind  string // "server", "leased" or "client"
	Index int
	Addrs []string
	Over  string // the provider
	Dir   string
	Load  load
}

// TestRole is the body of the processes; in the test itself it does nothing.
func TestRole(t *testing.T) {
	env := os.Getenv(roleEnv)
	if env == "" {
		t.Skip("this is what child processes run")
	}
	var r role
	err := json.Unmarshal([]byte(env), &r)
	if err == nil {
		switch r.Kind {
		case "server":
			err = r.serve()
		case "leased":
			err = r.serveLeased()
		case "client":
			err = r.work()
		default:
			err = fmt.Errorf("no role %q", r.Kind)
		}
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

// untilTold waits for the parent to close the standard input, or to die.
func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// fabric makes the provider of a process.
func fabric(name string) (p rdma.Provider, err error) {
	switch name {
	case "verbs":
		p, err = verbs.New(verbs.Options{Device: os.Getenv(deviceEnv)})
	case "tcp":
		p, err = tcp.New(tcp.Options{})
	default:
		p, err = shm.New(shm.Options{})
	}
	if err == nil {
		rdma.SetSecret(p, []byte("of the processes of this test"))
	}
	return p, err
}

func (r *role) serve() error {
	p, err := fabric(r.Over)
	if err != nil {
		return err
	}
	s := newLists(&r.Load)
	srv, err := server.New(server.Config{
		Index: r.Index, Addrs: r.Addrs, Catalog: s.cat, Procedures: s.procedures(), Provider: p, MemoryBytes: 1 << 30,
	})
	if err == nil {
		err = srv.Start()
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	untilTold()
	return errors.Join(srv.Check(), srv.Close())
}

func (r *role) open(ctx context.Context, c txn.Config) (*txn.DB, error) {
	p, err := fabric(r.Over)
	if err != nil {
		return nil, err
	}
	c.Servers, c.Dial = r.Addrs, p.Dial
	return txn.Open(ctx, c)
}

// logPath and planPath are the files of a client: what its transactions found,
// and what the one under way is to do.
func (r *role) logPath() string {
	return filepath.Join(r.Dir, fmt.Sprintf("client-%d.history", r.Index))
}

func (r *role) planPath() string { return filepath.Join(r.Dir, fmt.Sprintf("client-%d.plan", r.Index)) }

// work runs transactions until told to stop or killed. Each is announced in
// one file before it begins and recorded in the other when it has ended, so
// that whatever moment the process dies at, the parent knows what may have
// happened.
func (r *role) work() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := r.open(ctx, txn.Config{})
	if err != nil {
		return err
	}
	defer db.Close()
	log, err := os.Create(r.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	plan, err := os.Create(r.planPath())
	if err != nil {
		return err
	}
	defer plan.Close()
	c := newClient(&r.Load, newLists(&r.Load), db, r.Index)
	var buf []byte
	c.announce = func(n uint64, invoke int64) error {
		le := binary.LittleEndian
		buf = le.AppendUint32(le.AppendUint64(le.AppendUint64(buf[:0], n), uint64(invoke)), uint32(27*len(c.steps)))
		buf = encodeSteps(buf, c.steps)
		_, err := plan.WriteAt(buf, 0)
		return err
	}
	c.ended = func() error { return c.rec.Flush(log) }
	fmt.Println("ready")
	go func() {
		untilTold()
		cancel()
	}()
	err = c.work(ctx)
	c.counts["one-sided"] = int(db.OneSided())
	b, merr := json.Marshal(c.counts)
	fmt.Printf("%s%s\n", countsLine, b)
	return errors.Join(err, merr)
}

// countsLine begins a line with what a client has counted.
const countsLine = "counts: "

// unfinished is the transaction that a killed client was in, as one of unknown
// outcome: what it was to append may have been appended, or may yet be.
func (r *role) unfinished(process uint32) (*history.Txn, error) {
	b, err := os.ReadFile(r.planPath())
	if err != nil || len(b) < 20 {
		return nil, err
	}
	f, err := os.Open(r.logPath())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	log, err := history.ReadLog(bufio.NewReader(f))
	if err != nil && !errors.Is(err, history.ErrTruncated) && log == nil {
		if fi, serr := f.Stat(); serr != nil || fi.Size() > 0 {
			return nil, err
		}
	}
	recorded := uint64(0)
	if log != nil {
		recorded = uint64(log.Len())
	}
	le := binary.LittleEndian
	if n := le.Uint64(b); n <= recorded {
		return nil, nil
	}
	t := &history.Txn{ID: history.MakeTxnID(process, 1), Invoke: int64(le.Uint64(b[8:])), Complete: now(), Outcome: history.Unknown}
	for _, st := range decodeSteps(b[20 : 20+le.Uint32(b[16:])]) {
		if st.Kind == history.OpAppend {
			key := st.Key
			if st.table == inHash {
				key += hashKeys
			}
			t.Ops = append(t.Ops, history.Op{Kind: history.OpAppend, Key: key, Value: st.Value})
		}
	}
	return t, nil
}

// child is a process with a role.
type child struct {
	role
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Scanner
	dead  bool

	counts map[string]int // that a client has told
}

func spawn(t testing.TB, r role) *child {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{role: r, cmd: exec.Command(os.Args[0], "-test.run=^TestRole$")}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+string(b))
	c.cmd.Stderr = os.Stderr
	// Should this process be killed, the child goes too.
	c.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.stdin, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	t.Cleanup(func() { c.kill() })
	return c
}

// await reads lines up to the one wanted.
func (c *child) await(want string) error {
	for c.out.Scan() {
		switch line := c.out.Text(); {
		case line == want:
			return nil
		case strings.HasPrefix(line, countsLine):
			if err := json.Unmarshal([]byte(line[len(countsLine):]), &c.counts); err != nil {
				return err
			}
		case strings.HasPrefix(line, "error: "):
			return fmt.Errorf("%s %d: %s", c.Kind, c.Index, line)
		}
	}
	return fmt.Errorf("%s %d ended before it said %q: %w", c.Kind, c.Index, want, errors.Join(c.out.Err(), io.ErrUnexpectedEOF))
}

// stop tells the child to end and waits for it.
func (c *child) stop() error {
	if c.dead {
		return nil
	}
	c.stdin.Close()
	err := c.await("done")
	c.dead = true
	_ = c.cmd.Wait()
	return err
}

func (c *child) kill() {
	if !c.dead {
		c.dead = true
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// processes is a cluster of processes.
type processes struct {
	role             // what all have in common
	servers, clients []*child
}

// startServers starts n data servers over shared memory.
func startServers(t testing.TB, n int, l load) *processes {
	t.Helper()
	if err := shm.Available(); err != nil {
		if errors.Is(err, rdma.ErrUnsupported) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	// Socket paths are short; the usual directories of tests are not.
	dir, err := os.MkdirTemp("", "drtmx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &processes{role: role{Over: "shm", Dir: dir, Load: l}}
	for i := range n {
		p.Addrs = append(p.Addrs, filepath.Join(dir, fmt.Sprintf("s%d", i)))
	}
	p.start(t)
	return p
}

// startServersOver starts n data servers over an RDMA device.
func startServersOver(t testing.TB, device string, n int, l load) *processes {
	t.Helper()
	v, err := verbs.New(verbs.Options{Device: device})
	if err != nil {
		t.Fatal(err)
	}
	p := &processes{role: role{Over: "verbs", Dir: t.TempDir(), Load: l}}
	if p.Addrs, err = ports.DeviceAddrs(v, n); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	return p
}

// startServersOverTCP starts n data servers over TCP.
func startServersOverTCP(t testing.TB, n int, l load) *processes {
	t.Helper()
	addrs, err := testaddr.New(n)
	if err != nil {
		t.Fatal(err)
	}
	p := &processes{role: role{Over: "tcp", Dir: t.TempDir(), Addrs: addrs, Load: l}}
	p.start(t)
	return p
}

// add starts a process.
func (p *processes) add(t testing.TB, kind string, i int, l load) *child {
	t.Helper()
	r := p.role
	r.Kind, r.Index, r.Load = kind, i, l
	c := spawn(t, r)
	if kind == "server" {
		p.servers = append(p.servers, c)
	} else {
		p.clients = append(p.clients, c)
	}
	return c
}

// start starts the data servers.
func (p *processes) start(t testing.TB) {
	t.Helper()
	for i := range p.Addrs {
		p.add(t, "server", i, p.Load)
	}
	for _, s := range p.servers {
		if err := s.await("ready"); err != nil {
			testseed.SkipUnshared(t, err)
			t.Fatal(err)
		}
	}
}

// TestProcessHistories: several clients and servers as processes, over shared memory or TCP; some
// clients are killed in the middle. What all of them found is strictly serializable,
// and nothing is left locked.
//
// DRTMX_PROCESS_LOAD=writers lets clients commit most transactions without the data servers, bins
// makes the ordered table one of the engine FineStore, and the name of a twin gives a table that twin.
func TestProcessHistories(t *testing.T) {
	processHistories(t, os.Getenv("DRTMX_PROCESS_LOAD"), func(s *rng.Stream, l load) *processes {
		if s.Bool(0.3) {
			return startServersOverTCP(t, 3, l)
		}
		return startServers(t, 3, l)
	})
}

// TestProcessHistoriesOverVerbs is the same over an RDMA device.
func TestProcessHistoriesOverVerbs(t *testing.T) {
	device := deviceOrSkip(t)
	processHistories(t, os.Getenv("DRTMX_PROCESS_LOAD"), func(_ *rng.Stream, l load) *processes { return startServersOver(t, device, 2, l) })
}

// TestWritersOverVerbs is the same with clients that commit most transactions without the data
// servers, whose own commits go through the device, too.
func TestWritersOverVerbs(t *testing.T) {
	device := deviceOrSkip(t)
	n := processHistories(t, "writers", func(_ *rng.Stream, l load) *processes { return startServersOver(t, device, 2, l) })
	if n == 0 {
		t.Error("no client has committed without the data server: this test shows nothing")
	}
}

func deviceOrSkip(t *testing.T) string {
	t.Helper()
	device := os.Getenv(deviceEnv)
	if !verbs.Built || device == "" {
		t.Skip("SKIP: not built with the tag verbs, or " + deviceEnv + " names no RDMA device")
	}
	return device
}

// processHistories returns how many one-sided commits the clients made that were not killed.
func processHistories(t *testing.T, kind string, start func(s *rng.Stream, l load) *processes) int {
	t.Helper()
	seed := testseed.Of(t)
	stream := rng.New(seed).Split("processes")
	l := swarm(stream, seed)
	l.Duration, l.Hows, l.Clients, l.Deletes = simTime(t, time.Second), 1<<howBits-1, 4, 0.05
	switch kind {
	case "":
	case "writers":
		l.writers(stream.Split("writers"))
	case "bins":
		l.bins(stream.Split("bins"))
	default:
		l.Twin = tables.Twin(kind)
	}
	p := start(stream.Split("fabric"), l)
	for i := range l.Clients {
		own := l
		if i < l.Clients/2 {
			own.Deletes = 0 // what a killed client deleted, nobody knows
		}
		p.add(t, "client", i, own)
	}
	for _, c := range p.clients {
		if err := c.await("ready"); err != nil {
			t.Fatal(err)
		}
	}
	// The first half is killed, at random moments, and a successor takes its place.
	for i := range l.Clients / 2 {
		time.Sleep(time.Duration(stream.Uint64n(uint64(l.Duration / 2))))
		p.clients[i].kill()
		p.add(t, "client", l.Clients+i, l)
	}
	for _, c := range p.clients {
		if !c.dead {
			if err := c.await("done"); err != nil {
				t.Error(err)
			}
		}
	}
	return p.finish(t, &l)
}

// finish checks what is left, and the histories of all clients together. It returns how many
// one-sided commits the clients made that were not killed.
func (p *processes) finish(t *testing.T, l *load) (oneSided int) {
	t.Helper()
	ctx := context.Background()
	db, err := p.open(ctx, txn.Config{Retry: txn.Retry{Attempts: 200}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	x := &cluster{Cluster: &server.Cluster{DB: db}, s: newLists(l), addrs: p.Addrs}
	last := newClient(l, x.s, db, 1000)
	if err := errors.Join(last.readAll(ctx), x.settled(ctx), last.writeAll(ctx)); err != nil {
		t.Error(err)
	}
	lastPath := filepath.Join(p.Dir, "last.history")
	f, err := os.Create(lastPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(last.rec.Flush(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	paths := []string{lastPath}
	var lost []history.Txn
	for _, c := range p.clients {
		if u, err := c.unfinished(uint32(2000 + c.Index)); err != nil {
			t.Error(err)
		} else if u != nil {
			lost = append(lost, *u)
		}
		if fi, err := os.Stat(c.logPath()); err == nil && fi.Size() > 0 {
			paths = append(paths, c.logPath())
		}
	}
	if len(lost) > 0 {
		h, err := history.FromTxns(lost)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(p.Dir, "lost.history")
		if err := h.Save(path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	h, err := history.Load(paths...)
	if err != nil && !errors.Is(err, history.ErrTruncated) {
		t.Fatal(err)
	}
	rep := check(t, t.Name(), h)
	twin := "no twin"
	for _, c := range p.clients {
		oneSided += c.counts["one-sided"]
	}
	if l.Twin != "" {
		twin = "twin " + string(l.Twin)
	}
	t.Logf("%d transactions of %d processes over %s, %d of them under way when their client was killed; %d one-sided commits of the others; %s; %v",
		h.Len(), len(p.clients), p.Over, len(lost), oneSided, twin, rep)
	for _, s := range p.servers {
		if err := s.stop(); err != nil { // it checks its memory
			t.Error(err)
		}
	}
	return oneSided
}
