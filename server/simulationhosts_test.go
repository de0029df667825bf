//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	clusters "drtmx/internal/cluster"
	"drtmx/internal/placement"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/internal/vfstest"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/txn"
)

// Hosts of a simulated cluster: processes that find each other in a store of members,
// keep copies of each other's logs, and take over what is lost while the cluster runs.

// hosts are those of one run, and the clients' processes.
type hosts struct {
	w       *sim.World
	net     *inproc.Network
	members *simMembers
	s       *rng.Stream
	lists   *listSchema
	of      []*simHost
	clients []*clusters.Cluster
	dbs     []*txn.DB

	partitions, replicas int
	lease, patience      time.Duration
	parts, every         int64 // bytes of segments, and of the log between checkpoints
	ending               chan struct{}
	operators            int
	slots                int  // of a leaf
	orderly              bool // nothing goes wrong, and one operator waits for all that it begins
	wg                   sync.WaitGroup

	mu     sync.Mutex // guards s and all below
	counts map[string]int
	lost   bool // a disk
}

// simHost is a host: a disk, and one process after the other.
type simHost struct {
	all  *hosts
	i    int
	name string
	mem  *vfstest.Mem // under all.mu
	life *hostLife    // the present process; under all.mu
	port int

	moment *moment // the process is held then; under all.mu
	fails  float64 // share of the calls of its disk that fail; under all.mu
}

// hostLife is a process of a host.
type hostLife struct {
	store   *simHandle
	ctx     context.Context
	end     context.CancelFunc
	killed  chan struct{}
	revive  chan struct{} // closed when the next process may begin; after killed
	asked   chan struct{} // closed when it is to stop
	gone    chan struct{} // closed when it has ended
	again   chan struct{} // closed when the next process may begin; after asked
	member  *clusters.Member
	serving bool
}

func (h *hosts) count(what string) {
	h.mu.Lock()
	h.counts[what]++
	h.mu.Unlock()
}

func (h *hosts) draw(least, most int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return between(h.s, least, most)
}

// run is the supervisor of a host: a process that ends is started again.
func (x *simHost) run() {
	h := x.all
	for {
		l := &hostLife{killed: make(chan struct{}), revive: make(chan struct{}), store: h.members.open(x.name)}
		l.asked, l.gone, l.again = make(chan struct{}), make(chan struct{}), make(chan struct{})
		l.ctx, l.end = context.WithCancel(context.Background())
		h.mu.Lock()
		x.life = l
		o := x.options(l)
		if over(h.ending) {
			l.end()
		}
		h.mu.Unlock()
		m, err := clusters.Join(l.ctx, o)
		h.mu.Lock()
		l.member, l.serving = m, err == nil
		h.mu.Unlock()
		l.store.serving.Store(err == nil)
		ending := false
		if err != nil {
			h.w.Event("%s ends: %v", x.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			h.w.Event("%s serves", x.name)
			select {
			case <-m.Lost():
				h.w.Event("%s has lost its place: %v", x.name, m.Err())
				h.count("hosts deposed")
			case <-l.killed:
			case <-l.asked:
			case <-h.ending:
				ending = true
			}
			l.store.closing.Store(true)
			h.mu.Lock()
			l.serving = false
			h.mu.Unlock()
			_ = m.Close() // of a process that ends, or is dead
		}
		l.end()
		_ = l.store.Close()
		if !over(l.killed) {
			if !ending && !over(l.asked) {
				select {
				case <-time.After(h.draw(100, 2000)):
				case <-h.ending:
				}
			}
			// The process has ended by itself.
			h.mu.Lock()
			x.life = nil
			h.mu.Unlock()
			h.w.Kill(x.name)
		}
		close(l.gone)
		if over(l.killed) {
			await(l.revive, h.ending)
		}
		if over(l.asked) {
			await(l.again, h.ending)
		}
		select {
		case <-h.ending:
			return
		default:
		}
	}
}

// await waits until one of two channels is closed.
func await(a, b <-chan struct{}) {
	select {
	case <-a:
	case <-b:
	}
}

// options are those of a process of the host. Under all.mu.
func (x *simHost) options(l *hostLife) clusters.JoinOptions {
	h := x.all
	fs := vfstest.New(x.mem)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		h.w.Disk(x.name, string(op), name, effort(op))
		return x.disk(l, op, name)
	}
	fs.Pick = func() bool { return h.w.Bool(0.5) }
	fs.Torn = func() { h.w.Disk(x.name, "torn write", "", sim.Changes) }
	fabric := func() *multi.Provider {
		return &multi.Provider{TCP: h.w.Provider(h.net.As(rdma.Identity{Role: rdma.RoleServer, Name: x.name}), x.name)}
	}
	p := fabric()
	o := clusters.JoinOptions{
		Size:  clusters.Size{Servers: len(h.of), Partitions: h.partitions, DataDir: "data", Replicas: h.replicas, CheckpointBytes: uint64(h.every)},
		Index: placement.Server(x.i), Provider: p, Workload: clusters.Workload{Name: "lists", Catalog: h.lists.cat, Procedures: h.lists.procedures()},
		Log: slog.New(&simLog{w: h.w, name: x.name}), Store: l.store, Addr: fmt.Sprintf("tcp:%s:7000", x.name), Lease: h.lease, Return: true,
		Waiting: func(text string) { h.w.Event("%s waits: %s", x.name, text) },
		Keeping: func() { h.count("keepers") },
	}
	o.RunOn(clusters.Machine{
		FS: fs, SegmentBytes: h.parts,
		Configure: func(c *server.Config) {
			c.SmallLeaves(h.slots)
			c.MemoryBytes, c.SegmentBytes, c.CheckpointRate, c.CopyPatience = simulatedBytes, h.parts, 1<<40, h.patience
		},
		Beside: func(placement.Server) (string, *multi.Provider, error) {
			h.mu.Lock()
			x.port++
			port := x.port
			h.mu.Unlock()
			q := p.Quiet()
			return fmt.Sprintf("tcp:%s:%d", x.name, 7000+port), q, nil
		},
	})
	return o
}

// disk lets some calls of a disk fail, and holds a process whose moment has come.
func (x *simHost) disk(l *hostLife, op vfstest.Op, name string) error {
	h := x.all
	h.mu.Lock()
	if m := x.moment; m != nil && m.op == op && x.life == l {
		x.moment = nil
		h.mu.Unlock()
		close(m.come)
		l.store.held.Store(&name)
		<-m.over
		l.store.held.Store(nil)
		return nil
	}
	fails := op.Changes() && x.life == l && h.s.Bool(x.fails)
	h.mu.Unlock()
	if fails {
		h.w.Event("the disk of %s fails: %s", x.name, op)
		return errDisk
	}
	return nil
}

// setFails sets which share of the calls of the disk fail.
func (x *simHost) setFails(share float64) {
	x.all.mu.Lock()
	x.fails = share
	x.all.mu.Unlock()
}

// killAt ends the process of a host when it does something of a kind with its disk, or
// when d has passed.
func (x *simHost) killAt(op vfstest.Op, wait func(<-chan struct{})) (revive func(), ok bool) {
	h, m := x.all, &moment{op: op, come: make(chan struct{}), over: make(chan struct{})}
	h.mu.Lock()
	x.moment = m
	h.mu.Unlock()
	wait(m.come)
	h.mu.Lock()
	x.moment = nil
	h.mu.Unlock()
	if over(m.come) {
		h.w.Event("%s is at its moment: %s", x.name, op)
		h.count("moments")
	}
	revive, ok = x.kill(false)
	close(m.over)
	return revive, ok
}

// losable reports whether nothing that was acknowledged is lost with the disk of a
// host: a copy of each data server there is in sync at a host that can take it over. A
// keeper of copies cannot, and stays one while its host is drained. A run loses one
// disk. Under h.mu.
func (h *hosts) losable(x *simHost) bool {
	s := h.members.now()
	if h.lost || s.Map == nil {
		return false
	}
	takes := func(srv, host int) bool {
		own, ok := s.Map.Server(placement.Server(host))
		return host != x.i && s.Map.Set(placement.Server(srv)).Members.Has(s.Map.Copy(placement.Server(srv), host)) && (ok && own.Host == host || !s.Map.Drains(host))
	}
	for _, srv := range s.Map.Servers {
		if srv.Host == x.i && !slices.ContainsFunc(h.of, func(other *simHost) bool { return takes(int(srv.Index), other.i) }) {
			return false
		}
	}
	h.lost = true
	h.counts["disks lost"]++
	return true
}

// kill ends the process of a host at once. Its disk is left as the crash leaves it.
// The next process begins with revive. With lose, the disk is lost.
func (x *simHost) kill(lose bool) (revive func(), ok bool) {
	h := x.all
	h.mu.Lock()
	l := x.life
	if l == nil {
		h.mu.Unlock()
		return nil, false
	}
	x.life = nil
	if lose = lose && h.losable(x); lose {
		x.mem = vfstest.NewCrashableMem()
	}
	x.mem = x.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, h.s.Intn(101), 100}[h.s.Intn(3)], RNG: rand.New(h.s)})
	h.counts["crashes"]++
	h.mu.Unlock()
	addrs := h.w.Addrs(x.name)
	h.w.Kill(x.name)
	for _, addr := range addrs {
		_ = h.net.Kill(addr) // it may be closed already
	}
	l.store.die()
	l.end()
	close(l.killed)
	return func() { close(l.revive) }, true
}

// stop lets the process of a host do nothing for some time, while its memory is there.
func (x *simHost) stop() (goOn func()) {
	h := x.all
	addrs := h.w.Addrs(x.name)
	h.w.Stop(x.name)
	for _, addr := range addrs {
		_ = h.net.Pause(addr)
	}
	return func() {
		h.w.GoOn(x.name)
		for _, addr := range addrs {
			_ = h.net.Resume(addr) // it may be dead
		}
	}
}

// simLog makes events of what a host says.
type simLog struct {
	w    *sim.World
	name string
}

func (l *simLog) Enabled(_ context.Context, v slog.Level) bool { return v >= slog.LevelInfo }
func (l *simLog) WithAttrs([]slog.Attr) slog.Handler           { return l }
func (l *simLog) WithGroup(string) slog.Handler                { return l }

func (l *simLog) Handle(_ context.Context, r slog.Record) error {
	text := ""
	r.Attrs(func(a slog.Attr) bool { text += " " + strings.ReplaceAll(a.String(), "\n", "; "); return true })
	l.w.Event("%s says: %s%s", l.name, r.Message, text)
	return nil
}

// newHosts draws a cluster of hosts.
func newHosts(r *simulation) *hosts {
	s := r.s.Split("hosts")
	h := &hosts{
		w: r.w, s: s, members: newSimMembers(r.w, s.Split("members")),
		lists: newLists(&r.l), ending: make(chan struct{}), counts: map[string]int{},
		lease: []time.Duration{1, 1, 2, 5}[s.Intn(4)] * time.Second, patience: []time.Duration{100, 300, 2000, 2000}[s.Intn(4)] * time.Millisecond,
		parts: 16 << 10 << s.Intn(4), every: 4 << 10 << s.Intn(6),
	}
	n := []int{2, 3, 3}[s.Intn(3)]
	for i := range n {
		h.of = append(h.of, &simHost{all: h, i: i, name: fmt.Sprintf("h%d", i), mem: vfstest.NewCrashableMem()})
	}
	h.partitions, h.replicas = n*(1+s.Intn(2)), 2
	if n > 2 && s.Bool(0.6) {
		h.replicas = 3
	}
	h.operators = []int{0, 0, 1, 1, 2}[s.Intn(5)]
	if s.Bool(0.15) {
		h.orderly, h.operators, h.patience = true, 1, 2*time.Second
		h.members.orders(h.replicas)
		r.u.net.Faults = inproc.Faults{}
	}
	h.net, h.slots = inproc.New(r.u.net), r.u.slots
	return h
}

// start starts all hosts, and the clients' processes.
func (h *hosts) start(seed uint64, clients int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, x := range h.of {
		h.wg.Go(func() { h.w.As(x.name, x.run) })
	}
	if err := h.settle(); err != nil {
		return err
	}
	for i := range clients {
		if err := h.open(ctx, clientOf(i), seed+uint64(i)*2|1); err != nil {
			return err
		}
	}
	return nil
}

// clientOf is the name of a process of clients.
func clientOf(i int) string { return fmt.Sprintf("client%d", i) }

// open starts a process of clients.
func (h *hosts) open(ctx context.Context, name string, seed uint64) (err error) {
	h.w.As(name, func() {
		f := &multi.Provider{TCP: h.w.Provider(h.net.As(rdma.Identity{Role: rdma.RoleWriter, Name: name}), name)}
		var c *clusters.Cluster
		if c, err = clusters.Follow(ctx, f, h.members.open(name)); err != nil {
			return
		}
		h.clients = append(h.clients, c)
		cfg := c.Config()
		cfg.Seed = seed
		var db *txn.DB
		if db, err = txn.Open(ctx, cfg); err == nil {
			h.dbs = append(h.dbs, db)
		}
	})
	return err
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// servers are the data servers of all hosts.
func (h *hosts) servers() (all []*server.Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.of {
		if x.life != nil && x.life.serving {
			all = append(all, x.life.member.DataServers()...)
		}
	}
	return all
}

func (h *hosts) close() error {
	var errs []error
	for i := range h.dbs {
		h.w.As(clientOf(i), func() { errs = append(errs, h.dbs[i].Close(), h.clients[i].Close()) })
	}
	close(h.ending)
	h.mu.Lock()
	for _, x := range h.of {
		if x.life != nil {
			x.life.end()
		}
	}
	h.mu.Unlock()
	h.wg.Wait()
	return errors.Join(errs...)
}

// disastersMax bounds how much happens to the hosts of a run, one after the other.
const disastersMax = 12

// disasters lets things happen to hosts, one after the other or several at a time,
// until done is closed.
func (h *hosts) disasters(s *rng.Stream, rest int, done <-chan struct{}) {
	wait := func(d time.Duration) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-done:
		}
	}
	// Some things last as long as nobody notices, others longer than a lease.
	lasts := func() time.Duration {
		ms := int(h.lease / time.Millisecond)
		return between(s, 1, []int{100, ms, 3 * ms, 8 * ms}[s.Intn(4)])
	}
	for range 1 + s.Intn(disastersMax) {
		wait(between(s, 20, rest))
		if over(done) {
			return
		}
		x := h.of[s.Intn(len(h.of))]
		switch what := s.Float64(); {
		case !h.w.Next("disaster"):
		case what < 0.2:
			if revive, ok := x.kill(s.Bool(0.1)); ok {
				wait(lasts())
				revive()
			}
		case what < 0.3:
			op := momentsOf[s.Intn(len(momentsOf))]
			most := lasts()
			revive, ok := x.killAt(op, func(come <-chan struct{}) {
				t := time.NewTimer(most)
				defer t.Stop()
				select {
				case <-come:
				case <-t.C:
				case <-done:
				}
			})
			if ok {
				wait(lasts())
				revive()
			}
		case what < 0.36:
			h.count("disks that fail")
			x.setFails([]float64{0.01, 0.1, 0.5}[s.Intn(3)])
			wait(lasts())
			revive, ok := x.kill(false)
			x.setFails(0)
			if ok {
				revive()
			}
		case what < 0.39: // a call of the disk takes for ever, or nearly
			h.hang(s, x, wait, lasts())
		case what < 0.5: // it has been cut off from some when it ends
			h.count("crashes behind cuts")
			mend := h.part(s, x)
			wait(between(s, int(h.patience/time.Millisecond)/4, int(h.patience/time.Millisecond)))
			revive, ok := x.kill(s.Bool(0.1))
			wait(h.lease + between(s, 500, 5000))
			mend()
			wait(lasts())
			if ok {
				revive()
			}
		case what < 0.54:
			var all []func()
			for _, x := range h.of {
				if revive, ok := x.kill(false); ok {
					all = append(all, revive)
				}
			}
			for _, revive := range all {
				wait(between(s, 0, 300))
				revive()
			}
		case what < 0.62:
			h.count("stops")
			goOn := x.stop()
			wait(lasts())
			h.another(s, x, wait, lasts)
			goOn()
		case what < 0.75: // a client does not hear that another host has its place
			h.count("stops that a client does not hear of")
			client := clientOf(s.Intn(len(h.clients)))
			h.w.Cut(storeName, client)
			goOn := x.stop()
			wait(h.lease + between(s, 1000, 6000))
			if s.Bool(0.3) {
				goOn()
				wait(lasts())
			}
			h.w.Mend(storeName, client)
			goOn()
		default:
			h.count("cuts")
			mend := h.cut(s, x)
			wait(lasts())
			h.another(s, x, wait, lasts)
			mend()
		}
	}
}

// hang holds a call of a host's disk for some time, if there is one.
func (h *hosts) hang(s *rng.Stream, x *simHost, wait func(time.Duration), lasts time.Duration) {
	m := &moment{op: []vfstest.Op{vfstest.Sync, vfstest.Sync, vfstest.Write, vfstest.SyncDir}[s.Intn(4)], come: make(chan struct{}), over: make(chan struct{})}
	h.mu.Lock()
	x.moment = m
	h.mu.Unlock()
	wait(between(s, 1, 3000))
	h.mu.Lock()
	if x.moment == m {
		x.moment = nil
	}
	h.mu.Unlock()
	if over(m.come) {
		h.w.Event("the disk of %s hangs: %s", x.name, m.op)
		h.count("disks that hang")
		wait(lasts + between(s, 0, 8000))
		h.w.Event("the disk of %s goes on", x.name)
	}
	close(m.over)
}

// another kills a host now and then, or another one, while something else goes wrong.
func (h *hosts) another(s *rng.Stream, x *simHost, wait func(time.Duration), lasts func() time.Duration) {
	if !s.Bool(0.4) {
		return
	}
	if s.Bool(0.5) {
		x = h.of[s.Intn(len(h.of))]
	}
	if revive, ok := x.kill(false); ok {
		wait(lasts())
		revive()
		wait(lasts())
	}
}

// part lets the network fall into two parts.
func (h *hosts) part(s *rng.Stream, x *simHost) (mend func()) {
	beside, others := h.sides(s, x)
	for _, a := range beside {
		for _, b := range others {
			h.w.Cut(a, b)
			h.w.Cut(b, a)
		}
	}
	return func() {
		for _, a := range beside {
			for _, b := range others {
				h.w.Mend(a, b)
				h.w.Mend(b, a)
			}
		}
	}
}

// sides are the processes in the part of the network that a host is in, and the others.
func (h *hosts) sides(s *rng.Stream, x *simHost) (beside, others []string) {
	others = append(others, storeName)
	beside = append(beside, x.name)
	some := func(name string) {
		if s.Bool(0.4) {
			beside = append(beside, name)
		} else {
			others = append(others, name)
		}
	}
	for _, other := range h.of {
		if other != x {
			some(other.name)
		}
	}
	for i := range h.clients {
		some(clientOf(i))
	}
	return beside, others
}

// cut cuts a host, or a client, off from others.
func (h *hosts) cut(s *rng.Stream, x *simHost) (mend func()) {
	var pairs [][2]string
	oneWay := s.Intn(6) // 0, 1: nothing gets one way
	add := func(a, b string) {
		if a == b {
			return
		}
		if oneWay != 0 {
			pairs = append(pairs, [2]string{a, b})
		}
		if oneWay != 1 {
			pairs = append(pairs, [2]string{b, a})
		}
	}
	switch s.Intn(8) {
	case 6, 7: // the network falls into two parts
		beside, others := h.sides(s, x)
		for _, a := range beside {
			for _, b := range others {
				add(a, b)
			}
		}
	case 5: // from everything but the clients
		add(x.name, storeName)
		for _, other := range h.of {
			add(x.name, other.name)
		}
	case 0: // from the store
		add(x.name, storeName)
	case 1: // from another host
		add(x.name, h.of[s.Intn(len(h.of))].name)
	case 2: // from all hosts
		for _, other := range h.of {
			add(x.name, other.name)
		}
	case 3: // from everything
		add(x.name, storeName)
		for _, other := range h.of {
			add(x.name, other.name)
		}
		for i := range h.clients {
			add(x.name, clientOf(i))
		}
	default: // a client, from a host or from the store
		client := clientOf(s.Intn(len(h.clients)))
		if s.Bool(0.5) {
			add(client, storeName)
		} else {
			add(client, x.name)
		}
	}
	for _, p := range pairs {
		h.w.Cut(p[0], p[1])
	}
	return func() {
		for _, p := range pairs {
			h.w.Mend(p[0], p[1])
		}
	}
}

// calm waits until all that operators want has come about, and may then take their
// wishes back, and end a host.
func (r *simulation) calm(h *hosts) {
	err := h.settle()
	if err == nil {
		err = h.compare()
	}
	if err == nil && h.s.Bool(0.7) {
		r.w.Event("all wishes are taken back")
		if err = h.takeBack(); err == nil {
			err = h.settle()
		}
		if err == nil {
			err = h.compare()
		}
		if err == nil && h.s.Bool(0.5) {
			err = h.lastLoss()
		}
	}
	if err != nil {
		r.giveUp(err)
	}
}

// settleTime bounds how long a cluster may take until all hosts serve again, when
// nothing goes wrong any more.
const settleTime = 5 * time.Minute

// runTime is longer than any run takes.
const runTime = 2 * time.Hour

// runHosts runs a cluster of hosts, and checks all that must hold.
func (r *simulation) runHosts(t *testing.T) (simulated, error) {
	t.Helper()
	late := time.AfterFunc(runTime, func() { r.giveUp(fmt.Errorf("the run has not ended after %v", runTime)) })
	defer late.Stop()
	h := newHosts(r)
	if err := h.start(r.l.Seed|1, 2); err != nil {
		r.giveUp(err)
	}
	x := &cluster{Cluster: &server.Cluster{DB: h.dbs[0]}, net: h.net, s: h.lists, dbs: h.dbs}
	x.as, x.present = func(db int, fn func()) { h.w.As(clientOf(db), fn) }, r.present
	done := make(chan struct{})
	var wg sync.WaitGroup
	rest := []int{300, 1500, 5000}[h.s.Intn(3)]
	var operators []*operator
	for i := range h.operators {
		o, err := h.newOperator(context.Background(), i, r.s.Split(fmt.Sprintf("operator%d", i)))
		if err != nil {
			r.giveUp(err)
		}
		operators = append(operators, o)
	}
	feed, err := r.newFeed(x, h.openFeed)
	if err != nil {
		r.giveUp(fmt.Errorf("the feed does not begin: %w", err))
	}
	if feed != nil {
		feed.begin(done)
		defer feed.end()
	}
	h.members.begin()
	if !h.orderly {
		for i := range 1 + h.s.Intn(2) {
			s := r.s.SplitN(uint64(i))
			wg.Go(func() { h.disasters(s, rest, done) })
		}
	}
	for i, o := range operators {
		if !r.w.Part(fmt.Sprintf("operator %d", i)) {
			continue
		}
		wg.Go(func() { h.w.As(o.name, func() { o.run(done) }) })
	}
	var once sync.Once
	x.calm = func() {
		once.Do(func() {
			close(done)
			wg.Wait()
			r.w.Event("calm")
			h.members.calm()
			r.calm(h)
			x.Servers = h.servers()
		})
	}
	out, err := x.run(t, &r.l)
	x.calm()
	if feed != nil && out.h != nil {
		err = errors.Join(err, feed.finish(out.h))
		feed.report(h.counts)
	}
	err = errors.Join(err, h.close(), h.members.brokenRules())
	for what, n := range out.counts {
		h.counts[what] += n
	}
	return r.judge(out, err, h.counts)
}
