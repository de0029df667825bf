package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/txn"
)

// giver is a host that keeps copies, and may give them away.
type giver interface {
	YieldCopy(home placement.Server) (string, datadir.Copy, error)
	ResumeCopy(home placement.Server)
}

// giver is the host that keeps the copy of a home.
func (c *copied) giver(home int) giver {
	if c.keeper != nil {
		return c.keeper
	}
	return c.Servers[(home+1)%len(c.Servers)]
}

// TestYieldedCopy: a copy that is given away has everything that was acknowledged,
// unless it has left the set. Nobody changes its files before it is taken again, also
// if the home goes on. Then it catches up, or is made anew if it is gone.
func TestYieldedCopy(t *testing.T) {
	t.Parallel()
	keepers(t, copyOptions{servers: 2, replicas: 2, patience: 200 * time.Millisecond, checkpoint: 4 << 10}, testYieldedCopy)
}

func testYieldedCopy(t *testing.T, o copyOptions) {
	t.Helper()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), o)
	id, g := c.at(t, 0), c.giver(0)
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	stop := func() { cancel(); writer.Wait() }
	defer stop()
	writer.Go(func() {
		for i := int64(0); ctx.Err() == nil; i++ {
			if err := c.put(ctx, id, i); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	home := c.Servers[0].durable.group
	members := func() replica.Set {
		set, err := c.Servers[0].cfg.Sets.Set(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	for round := range 3 {
		c.inSync(t)
		dir, made, err := g.YieldCopy(0)
		if err != nil {
			t.Fatal(err)
		}
		safe := wal.LSN(home.horizon.Load())
		set, image := members(), imageUnder(c.disk, dir)
		if made.Since != uint32(set.Since) || made.Epoch != uint32(set.Epoch) {
			t.Errorf("the copy is of %+v, and the set is %+v", made, set)
		}
		if end := endOf(t, c.disk, dir); set.Members.Has(1) && end < safe {
			t.Errorf("the copy ends at %d, and what is before %d was acknowledged", end, safe)
		}
		if _, _, err := g.YieldCopy(0); !errors.Is(err, ErrCopyGiven) {
			t.Errorf("given away again: %v", err)
		}
		await(t, "the home goes on without the copy", func() bool {
			if imageUnder(c.disk, dir) != image {
				t.Fatal("the files of a copy have changed after it was given away")
			}
			return !members().Members.Has(1) && home.horizon.Load() > uint64(safe)
		})
		await(t, "the home is told that the copy was given away", func() bool {
			return strings.Contains(c.Servers[0].Copies()[0].Failed, ErrCopyGiven.Error())
		})
		if imageUnder(c.disk, dir) != image {
			t.Error("the files of a copy have changed after it was given away")
		}
		if round == 1 {
			if err := c.disk.Rename(dir, "away"); err != nil {
				t.Fatal(err)
			}
		}
		g.ResumeCopy(0)
	}
	c.inSync(t)
	stop()
	if err := c.put(t.Context(), id, -1); err != nil {
		t.Fatal(err)
	}
	sameRecords(t, c.kept(0, 1).log, c.Servers[0].durable.log)
	if _, _, err := g.YieldCopy(1); o.keeper && err != nil || !o.keeper && !errors.Is(err, ErrNoCopy) {
		t.Errorf("the copy of server 1: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.YieldCopy(0); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("given away by a host that is closed: %v", err)
	}
}

// endOf is the end of the log in the directory of a copy.
func endOf(t testing.TB, fs vfs.FS, dir string) wal.LSN {
	t.Helper()
	id, ok, err := datadir.Read(fs, dir)
	if err != nil || !ok {
		t.Fatalf("%s has no identity: %v", dir, err)
	}
	log, err := wal.Open(wal.Options{FS: fs, Dir: fs.PathJoin(dir, LogDir), SegmentBytes: 64 << 10, Identity: id.Bytes(), ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	end := log.End()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return end
}

// homeLog is the home of a copy: a log, and the checkpoints that there were, which
// tests send step by step.
type homeLog struct {
	id    datadir.Identity
	log   *wal.Log
	end   uint64 // what is sent of it; more may come, which has no records
	bases []homeBase
}

// homeBase is a checkpoint. A copy may use it when it has the log up to need.
type homeBase struct {
	log, need wal.LSN
	file      []byte
}

// newHomeLog runs a bank of one server that makes two checkpoints.
func newHomeLog(t testing.TB) *homeLog {
	t.Helper()
	disk, cat := vfs.NewMem(), bank(t)
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Durability: Disk, Dir: "data", FS: disk, SegmentBytes: 64 << 10, CheckpointBytes: 1 << 40, CheckpointRate: 1 << 40, MemoryBytes: 1 << 27,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	c, s := &copied{Cluster: cl, acct: cat.MustTable("account")}, cl.Servers[0]
	h := &homeLog{id: s.durable.dir.Identity, log: s.durable.log}
	for i := range uint64(60) {
		if i > 0 && i%20 == 0 {
			if err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			b := homeBase{log: wal.LSN(s.durable.checkpoints.from.Load()), need: h.log.End()}
			b.file = contents(t, disk, disk.PathJoin("data/server-0", CheckpointDir, image.Name(uint64(b.log))))
			h.bases = append(h.bases, b)
		}
		if err := c.put(t.Context(), i, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	h.end = uint64(h.log.Durable())
	return h
}

func contents(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// session sends steps in one session.
type session struct {
	epoch  uint32
	number uint64
	do     func(m *wire.CopyStep) (wire.CopyState, error)
}

func (s *session) call(m wire.CopyStep) (wire.CopyState, error) {
	m.Host, m.To, m.Epoch, m.Since, m.Session = 0, 1, s.epoch, 1, s.number
	return s.do(&m)
}

// begin begins the session.
func (h *homeLog) begin(s *session) (wire.CopyState, error) {
	id, err := json.Marshal(h.id)
	if err != nil {
		return wire.CopyState{}, err
	}
	return s.call(wire.CopyStep{Step: wire.CopyBegin, Bytes: id})
}

// send sends all that there is.
func (h *homeLog) send(s *session) (state wire.CopyState, err error) {
	if state, err = h.begin(s); err != nil {
		return state, err
	}
	if !state.There {
		if _, err = s.call(wire.CopyStep{Step: wire.CopyReset}); err != nil {
			return state, err
		}
		if state, err = h.sendBase(s, &h.bases[0]); err != nil {
			return state, err
		}
	}
	last := &h.bases[len(h.bases)-1]
	for state.End < h.end {
		if state.Base < uint64(last.log) && state.Durable >= uint64(last.need) {
			if state, err = h.sendBase(s, last); err != nil {
				return state, err
			}
		}
		frames, err := h.log.Frames(wal.LSN(state.End), int(min(700, h.end-state.End)), nil)
		if err != nil {
			return state, err
		}
		at := state.End
		if state, err = s.call(wire.CopyStep{Step: wire.CopyFrames, At: at, Bytes: frames}); err != nil {
			return state, err
		}
		if state.End != at+uint64(len(frames)) {
			return state, fmt.Errorf("the copy ends at %d after %d bytes at %d", state.End, len(frames), at)
		}
	}
	if state.Base < uint64(last.log) {
		state, err = h.sendBase(s, last)
	}
	return state, err
}

func (h *homeLog) sendBase(s *session, b *homeBase) (wire.CopyState, error) {
	const piece = 1 << 10
	for at := 0; at < len(b.file); at += piece {
		if state, err := s.call(wire.CopyStep{
			Step: wire.CopyBase, Log: uint64(b.log), At: uint64(at), Bytes: b.file[at:min(at+piece, len(b.file))],
		}); err != nil {
			return state, err
		}
	}
	install := wire.CopyStep{Step: wire.CopyInstall, Log: uint64(b.log), At: uint64(len(b.file))}
	state, err := s.call(install)
	for end := time.Now().Add(testseed.Patience()); err == nil && state.Base != uint64(b.log) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		state, err = s.call(install)
	}
	if err == nil && (!state.There || state.Base != uint64(b.log)) {
		err = fmt.Errorf("after the checkpoint at %d the copy is %+v", b.log, state)
	}
	return state, err
}

// keepingHost is a data server or a keeper, host 1 of 2.
type keepingHost struct {
	giver
	close  func() error
	copies *keptCopies
	conn   rdma.Conn // of a data server
}

func openKeepingHost(t testing.TB, keeper bool, fs vfs.FS) (h *keepingHost, err error) {
	t.Helper()
	net := inproc.New(inproc.Options{})
	addrs := []string{"server-0", "server-1"}
	if keeper {
		k, err := NewKeeper(KeeperConfig{Provider: net, Addr: addrs[1], Dir: "data/keeper", FS: fs, SegmentBytes: 64 << 10, Host: 1, Servers: 2})
		if err != nil {
			return nil, err
		}
		h = &keepingHost{giver: k, close: k.Close, copies: &k.copies}
		err = k.Start()
		if err != nil {
			return nil, errors.Join(err, k.Close())
		}
	} else {
		s, err := New(Config{
			Index: 1, Addrs: addrs, Catalog: bank(t), Provider: net, Durability: Disk, Dir: "data/server-1", FS: fs, SegmentBytes: 64 << 10, MemoryBytes: 1 << 27,
		})
		if err != nil {
			return nil, err
		}
		h = &keepingHost{giver: s, close: s.Close, copies: &s.durable.copies}
		if err := s.Start(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	h.conn, err = net.As(rdma.Identity{Role: rdma.RoleServer, Name: "server-0"}).Dial(t.Context(), addrs[1])
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *keepingHost) Close() error { return errors.Join(h.conn.Close(), h.close()) }

// step makes a step by an RPC.
func (h *keepingHost) step(m *wire.CopyStep) (state wire.CopyState, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	defer cancel()
	resp, err := rdma.Call(ctx, h.conn, m.Append(nil), nil)
	switch {
	case err != nil:
		return state, err
	case len(resp) == 0 || wire.Code(resp[0]) != wire.OK:
		return state, fmt.Errorf("refused: %q", resp)
	}
	return state, state.Decode(resp[1:])
}

// copyCrash is what a crash left, and what had been answered before.
type copyCrash struct {
	disk  *vfstest.Mem
	what  string
	acked wire.CopyState
	begun bool
}

// TestCopyCrashPoints: a host crashes before any operation of its file system while it
// keeps a copy. Afterwards the copy has all that it has answered for, nothing that the
// home has not, and no step of an earlier epoch is taken. The home goes on with it, and
// it becomes complete.
func TestCopyCrashPoints(t *testing.T) {
	t.Parallel()
	home := newHomeLog(t)
	for _, x := range []struct {
		name        string
		keeper      bool
		most, every int
	}{{"data server", false, 60, 4}, {"keeper", true, 200, 2}} {
		t.Run(x.name, func(t *testing.T) {
			seed, crashes, points := testseed.Of(t), 0, map[string]int{}
			for run, begin := uint64(0), time.Now(); crashes < x.most && time.Since(begin) < time.Minute; run++ {
				r := rand.New(rand.NewPCG(seed, run))
				for _, c := range home.crash(t, r, x.keeper, x.every, x.most-crashes) {
					home.recover(t, r, x.keeper, c)
					crashes++
					points[c.what]++
				}
			}
			t.Logf("%d crashes: %v", crashes, points)
		})
	}
}

// crash sends everything to a host, and returns what crashes would leave.
func (h *homeLog) crash(t *testing.T, r *rand.Rand, keeper bool, every, most int) (all []copyCrash) {
	t.Helper()
	disk := vfstest.NewCrashableMem()
	fs := vfstest.New(disk)
	var mu sync.Mutex
	var acked wire.CopyState
	var begun, done bool
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if leaves(op) && !done && len(all) < most && strings.Contains(name, CopiesDir) && r.IntN(every) == 0 {
			all = append(all, copyCrash{
				disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r}), string(op), acked, begun,
			})
		}
		return nil
	}
	host, err := openKeepingHost(t, keeper, fs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.send(&session{epoch: 2, number: 1, do: func(m *wire.CopyStep) (wire.CopyState, error) {
		if m.Step == wire.CopyReset {
			mu.Lock()
			acked = wire.CopyState{}
			mu.Unlock()
		}
		state, err := host.step(m)
		if err == nil {
			mu.Lock()
			acked, begun = state, true
			mu.Unlock()
		}
		return state, err
	}}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	done = true
	mu.Unlock()
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	return all
}

// recover opens what a crash left, and sends the rest.
func (h *homeLog) recover(t *testing.T, r *rand.Rand, keeper bool, c copyCrash) {
	t.Helper()
	host, err := openKeepingHost(t, keeper, c.disk)
	if err != nil {
		t.Fatalf("%s: %v", c.what, err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	if state, err := h.begin(&session{epoch: 1, number: 9, do: host.step}); c.begun && err == nil {
		t.Errorf("%s: a step of an epoch before is taken: %+v", c.what, state)
	}
	s := &session{epoch: 2 + r.Uint32N(2), number: 1 + r.Uint64N(2), do: host.step}
	state, err := h.begin(s)
	if err != nil {
		t.Fatalf("%s: %v", c.what, err)
	}
	if was := c.acked; was.There && (!state.There || state.Durable < was.Durable || state.Base < was.Base) {
		t.Fatalf("%s: the copy answered for %+v, and has %+v", c.what, was, state)
	}
	h.compare(t, host, state)
	s.number++
	if state, err = h.send(s); err != nil {
		t.Fatalf("%s: %v", c.what, err)
	}
	last := h.bases[len(h.bases)-1]
	if state.End != h.end || state.Durable != h.end || state.Base != uint64(last.log) {
		t.Fatalf("%s: in the end the copy has %+v, want %d", c.what, state, h.end)
	}
	h.compare(t, host, state)
	dir, made, err := host.YieldCopy(0)
	if err != nil || made.Epoch != s.epoch || made.Since != 1 {
		t.Fatalf("%s: %+v, %v", c.what, made, err)
	}
	if end := endOf(t, c.disk, dir); uint64(end) != h.end {
		t.Errorf("%s: the log of the directory ends at %d, want %d", c.what, end, h.end)
	}
	if got := contents(t, c.disk, c.disk.PathJoin(dir, CheckpointDir, image.Name(uint64(last.log)))); !bytes.Equal(got, last.file) {
		t.Errorf("%s: the checkpoint is another one", c.what)
	}
}

// compare compares the log of a copy with that of the home.
func (h *homeLog) compare(t *testing.T, host *keepingHost, state wire.CopyState) {
	t.Helper()
	kept, err := host.copies.get(0)
	if err != nil || !state.There {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	have := records(t, kept.log, wal.LSN(state.Base))
	want := records(t, h.log, wal.LSN(state.Base))
	if len(have) > len(want) || !slices.Equal(have, want[:len(have)]) {
		t.Errorf("the copy has %d records, which are not the first of the home's %d", len(have), len(want))
	}
}

// TestStepsAfterACopyWasTaken: when a copy that was given away is taken again, its
// home begins anew. What it sent before is late, and so is what an earlier home sends,
// also if the directory is gone.
func TestStepsAfterACopyWasTaken(t *testing.T) {
	home := newHomeLog(t)
	for _, keeper := range []bool{false, true} {
		disk := vfs.NewMem()
		host, err := openKeepingHost(t, keeper, disk)
		if err != nil {
			t.Fatal(err)
		}
		late := &session{epoch: 3, number: 5, do: host.step}
		if _, err := home.send(late); err != nil {
			t.Fatal(err)
		}
		dir, _, err := host.YieldCopy(0)
		if err != nil {
			t.Fatal(err)
		}
		steps := []wire.CopyStep{
			{Step: wire.CopyFrames, At: home.end, Bytes: []byte{1}}, {Step: wire.CopyReset}, {Step: wire.CopyInstall, Log: 1, At: 1},
		}
		refused := func(why string) {
			t.Helper()
			if state, err := home.begin(late); err == nil {
				t.Errorf("keeper %t, %s: the session begins again: %+v", keeper, why, state)
			}
			for _, m := range steps {
				if state, err := late.call(m); err == nil {
					t.Errorf("keeper %t, %s: step %d is taken: %+v", keeper, why, m.Step, state)
				}
			}
		}
		refused("given away")
		host.ResumeCopy(0)
		refused("taken again")
		if _, _, err := host.YieldCopy(0); err != nil {
			t.Fatal(err)
		}
		if err := disk.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		host.ResumeCopy(0)
		refused("taken again without a directory")
		if state, err := home.begin(&session{epoch: 2, number: 9, do: host.step}); err == nil {
			t.Errorf("keeper %t: a home of an earlier epoch begins: %+v", keeper, state)
		}
		if _, _, err := host.YieldCopy(0); !errors.Is(err, ErrNoCopy) {
			t.Errorf("keeper %t: without a directory: %v", keeper, err)
		}
		state, err := home.send(&session{epoch: 3, number: 6, do: host.step})
		if err != nil || state.End != home.end {
			t.Errorf("keeper %t: made anew it has %+v, %v", keeper, state, err)
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKeepersRefuse: a host keeps no copies of data servers that are there, and none
// that another host is to keep. A keeper answers nothing else, and says so.
func TestKeepersRefuse(t *testing.T) {
	home := newHomeLog(t)
	for _, keeper := range []bool{false, true} {
		host, err := openKeepingHost(t, keeper, vfs.NewMem())
		if err != nil {
			t.Fatal(err)
		}
		id, err := json.Marshal(home.id)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			m    wire.CopyStep
			want error // nil: taken
		}{
			{wire.CopyStep{Host: 1, To: 1}, ErrSameHost},
			{wire.CopyStep{Host: 1, To: -1}, ErrSameHost},
			{wire.CopyStep{Host: 0, To: 0}, ErrOtherHost},
			{wire.CopyStep{Host: -1, To: -1}, nil},
			{wire.CopyStep{Server: 2, To: 1}, errors.New("malformed")},
		} {
			x.m.Step, x.m.Epoch, x.m.Session, x.m.Bytes = wire.CopyBegin, 1, 1, id
			_, err := host.step(&x.m)
			if (err == nil) != (x.want == nil) || err != nil && !strings.Contains(err.Error(), x.want.Error()) {
				t.Errorf("keeper %t, from host %d to %d: %v, want %v", keeper, x.m.Host, x.m.To, err, x.want)
			}
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}

	net, disk := inproc.New(inproc.Options{}), vfs.NewMem()
	config := KeeperConfig{Provider: net, Addr: "host-1", Dir: "keeper", FS: disk, Host: 1, Servers: 2}
	k, err := NewKeeper(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Start(); err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ask := func(role rdma.Role, req ...byte) []byte {
		t.Helper()
		c, err := net.As(rdma.Identity{Role: role, Name: "one"}).Dial(t.Context(), k.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		resp, err := rdma.Call(t.Context(), c, req, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if _, err := wire.DecodeHello(ask(rdma.RoleReader, byte(wire.OpHello))); !errors.Is(err, wire.ErrKeeper) {
		t.Errorf("hello: %v", err)
	}
	step := (&wire.CopyStep{Step: wire.CopyBegin, To: 1}).Append(nil)
	for _, x := range []struct {
		role rdma.Role
		req  []byte
		want wire.Code
		text string
	}{
		{rdma.RoleLoader, step, wire.Forbidden, "copy needs the role server, the peer is loader one"},
		{rdma.RoleServer, step, wire.Bad, "identity"},
		{rdma.RoleServer, step[:9], wire.Bad, "malformed"},
		{rdma.RoleServer, nil, wire.Bad, "empty"},
		{rdma.RoleReader, []byte{byte(wire.OpStats)}, wire.Bad, wire.ErrKeeper.Error()},
		{rdma.RoleServer, []byte{byte(wire.OpPrepare)}, wire.Bad, wire.ErrKeeper.Error()},
		{rdma.RoleServer, []byte{200}, wire.Bad, wire.ErrKeeper.Error()},
	} {
		if resp := ask(x.role, x.req...); wire.Code(resp[0]) != x.want || !strings.Contains(string(resp), x.text) {
			t.Errorf("%v asks %x: %q, want code %d with %q", x.role, x.req, resp, x.want, x.text)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if _, err := txn.Open(ctx, txn.Config{Servers: []string{k.Addr()}, Dial: net.Dial}); !errors.Is(err, txn.ErrUnavailable) || !errors.Is(err, wire.ErrKeeper) {
		t.Errorf("a client: %v", err)
	}
	if _, err := NewKeeper(config); !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("a second keeper: %v", err)
	}
	if err := errors.Join(k.Close(), k.Close()); err != nil {
		t.Error(err)
	}
	if _, err := NewKeeper(KeeperConfig{Host: 3, Servers: 2}); !errors.Is(err, ErrConfig) || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("a configuration with three faults: %v", err)
	}
	if err := datadir.CompleteCopy(disk, config.Dir, home.id); err != nil {
		t.Fatal(err)
	}
	if _, err := NewKeeper(config); !errors.Is(err, datadir.ErrForeign) {
		t.Errorf("a keeper in the directory of a data server: %v", err)
	}
}
