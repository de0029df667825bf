//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	clusters "drtmx/internal/cluster"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/rng"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// Operators of a simulated cluster: they say where data servers are to be, drain
// hosts, stop and start them, as the commands about clusters do.

// operator is a process that an operator uses.
type operator struct {
	h     *hosts
	name  string
	s     *rng.Stream
	store *simHandle
	c     *clusters.Cluster
	// orderly: it waits for the end of all that it begins, and nothing may fail.
	orderly bool
	rest    int // ms between two commands, at most
}

// newOperator connects an operator to the cluster.
func (h *hosts) newOperator(ctx context.Context, i int, s *rng.Stream) (o *operator, err error) {
	o = &operator{h: h, name: fmt.Sprintf("operator%d", i), s: s, rest: []int{500, 3000, 10_000}[s.Intn(3)], orderly: h.orderly}
	h.w.As(o.name, func() {
		o.store = h.members.open(o.name)
		f := &multi.Provider{TCP: h.w.Provider(h.net.As(rdma.Identity{Role: rdma.RoleReader, Name: o.name}), o.name)}
		o.c, err = clusters.Follow(ctx, f, o.store)
	})
	return o, err
}

// commandsMax bounds how many commands an operator gives in a run.
const commandsMax = 10

// run gives commands until done is closed.
func (o *operator) run(done <-chan struct{}) {
	defer func() { _ = o.c.Close() }()
	life, end := context.WithCancel(context.Background())
	defer end()
	if !o.orderly {
		o.h.wg.Go(func() {
			await(done, life.Done())
			end()
		})
	}
	for range 1 + o.s.Intn(commandsMax) {
		sleep(life, between(o.s, 20, o.rest))
		if over(done) {
			return
		}
		most := between(o.s, 50, []int{1000, 10_000, 60_000}[o.s.Intn(3)])
		if o.orderly {
			most = settleTime
		}
		ctx, cancel := context.WithTimeout(life, most)
		what, err := o.command(ctx)
		timeout := ctx.Err() != nil && life.Err() == nil
		cancel()
		text := "is done"
		switch {
		case errors.Is(err, errNothing), life.Err() != nil:
			continue
		case err != nil:
			text = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		o.h.w.Event("%s: %s: %s", o.name, what, text)
		switch what, _, _ := strings.Cut(what, " "); {
		case err == nil:
			o.h.count("done: " + what)
		case timeout:
			o.h.count("under way: " + what)
		default:
			o.h.count("refused: " + what)
		}
		if o.orderly && err != nil {
			o.h.members.fault("%s fails although nothing goes wrong: %s", what, text)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// errNothing says that there is nothing to do.
var errNothing = errors.New("nothing to do")

// command gives one command, and waits for its end or for that of ctx.
func (o *operator) command(ctx context.Context) (what string, err error) {
	n := len(o.h.of)
	server, host := o.s.Intn(n), o.s.Intn(n)
	if o.orderly {
		return o.orderlyCommand(ctx, server, host)
	}
	switch x := o.s.Float64(); {
	case x < 0.3:
		return o.move(ctx, server, host)
	case x < 0.45: // as one who has looked before something else has changed
		what = fmt.Sprintf("wish for server %d at host %d", server, host)
		_, err = member.Change(ctx, o.store, func(m *member.Map) (*member.Map, error) {
			if !m.PutWish(placement.Server(server), host) {
				return nil, nil
			}
			return m, nil
		})
		return what, err
	case x < 0.6:
		what = fmt.Sprintf("drain of host %d", host)
		if _, err = o.c.Drain(ctx, host); err == nil && o.s.Bool(0.7) {
			err = o.c.AwaitDrained(ctx, host)
		}
		return what, err
	case x < 0.75:
		return fmt.Sprintf("undrain of host %d", host), o.c.Undrain(ctx, host)
	case x < 0.85:
		what = fmt.Sprintf("stop of host %d", host)
		start, ok := o.h.of[host].halt()
		if !ok {
			return what, errNothing
		}
		sleep(ctx, between(o.s, 0, []int{100, 3000, 15_000}[o.s.Intn(3)]))
		start(false)
		return what, nil
	case x < 0.93:
		return o.restart(ctx, host)
	default:
		return o.replace(ctx, host)
	}
}

// orderlyCommand gives a command that can be carried out, and leaves all as it was.
func (o *operator) orderlyCommand(ctx context.Context, server, host int) (what string, err error) {
	switch x := o.s.Float64(); {
	case x < 0.5:
		if server == host {
			return "", errNothing
		}
		if what, err = o.move(ctx, server, host); err != nil {
			return what, err
		}
		sleep(ctx, between(o.s, 0, 5000))
		if what, err = o.move(ctx, server, server); err == nil {
			err = o.c.AwaitInSync(ctx, o.h.copiesWanted())
		}
		return what, err
	case x < 0.85:
		return o.restart(ctx, host)
	default:
		return o.replace(ctx, host)
	}
}

func (o *operator) move(ctx context.Context, server, host int) (what string, err error) {
	if _, err = o.c.Move(ctx, placement.Server(server), host); err == nil && (o.orderly || o.s.Bool(0.6)) {
		_, err = o.c.AwaitPlaced(ctx, placement.Server(server))
	}
	return fmt.Sprintf("move of server %d to host %d", server, host), err
}

// restart drains a host, starts it again, and undrains it.
func (o *operator) restart(ctx context.Context, host int) (what string, err error) {
	what = fmt.Sprintf("restart of host %d", host)
	copies, err := o.c.InSync(ctx)
	if err == nil {
		err = o.drain(ctx, host)
	}
	if err != nil {
		return what, err
	}
	if start, ok := o.h.of[host].halt(); ok {
		start(false)
	}
	if err = o.c.Undrain(ctx, host); err == nil {
		err = o.c.AwaitInSync(ctx, copies)
	}
	return what, err
}

// drain drains a host, and waits until it is empty.
func (o *operator) drain(ctx context.Context, host int) error {
	goes, err := o.c.Drain(ctx, host)
	if err == nil {
		err = o.c.AwaitDrained(ctx, host)
	}
	for _, w := range goes {
		if err == nil {
			_, err = o.c.AwaitServing(ctx, w.Server)
		}
	}
	return err
}

// replace removes a host that is drained, with its disk, and adds another one in its
// place.
func (o *operator) replace(ctx context.Context, host int) (what string, err error) {
	what = fmt.Sprintf("replacement of host %d", host)
	if err = o.drain(ctx, host); err == nil {
		err = o.c.CheckDrained(ctx, host)
	}
	if err != nil {
		return what, err
	}
	start, ok := o.h.of[host].halt()
	if !ok {
		return what, errNothing
	}
	empty := false
	defer func() { start(empty) }()
	if err = o.c.AwaitLeft(ctx, host); err != nil {
		return what, err
	}
	empty = true
	o.h.count("hosts replaced")
	start(true)
	if err = o.c.Undrain(ctx, host); err == nil {
		err = o.c.AwaitInSync(ctx, nil)
	}
	return what, err
}

// halt stops the process of a host, as an operator does: it ends by itself. The next
// one begins with start, which may be called again; with empty, on an empty disk.
func (x *simHost) halt() (start func(empty bool), ok bool) {
	h := x.all
	h.mu.Lock()
	l := x.life
	if l == nil || over(l.asked) {
		h.mu.Unlock()
		return nil, false
	}
	l.store.closing.Store(true)
	close(l.asked)
	l.end()
	h.mu.Unlock()
	h.w.Event("%s is to stop", x.name)
	<-l.gone
	begun := false
	return func(empty bool) {
		if begun {
			return
		}
		begun = true
		if empty {
			h.mu.Lock()
			x.mem = vfstest.NewCrashableMem()
			h.mu.Unlock()
			h.w.Event("%s has an empty disk", x.name)
		}
		close(l.again)
	}, true
}

// copiesWanted is how many copies of each server are to be in sync if no host is drained.
func (h *hosts) copiesWanted() map[placement.Server]int {
	all := map[placement.Server]int{}
	for i := range h.of {
		all[placement.Server(i)] = h.replicas
	}
	return all
}

// takeBack takes all wishes back.
func (h *hosts) takeBack() error {
	var err error
	h.w.As("operator", func() {
		store := h.members.open("operator")
		defer store.Close()
		_, err = member.Change(context.Background(), store, func(m *member.Map) (*member.Map, error) {
			if len(m.Wishes)+len(m.Drained) == 0 {
				return nil, nil
			}
			m.Wishes, m.Drained = nil, nil
			return m, nil
		})
	})
	return err
}

// missing says what is not as it is to be, when nothing goes wrong any more: which
// hosts and servers do not run, which wishes are not met, and which copies are not in
// sync.
func (h *hosts) missing(s *member.State) string {
	if s.Map == nil {
		return "there is no map; "
	}
	text := ""
	for i, x := range h.of {
		now, _ := s.Map.Server(placement.Server(i))
		if r, alive := s.Registered(placement.Server(i)); !alive || r.Instance != now.Instance {
			text += fmt.Sprintf("server %d is not registered; ", i)
		}
		if now.Host != i {
			if _, keeps := s.Registered(placement.Server(len(h.of) + i)); !keeps {
				text += fmt.Sprintf("host %d keeps nothing; ", i)
			}
			continue
		}
		h.mu.Lock()
		serves := x.life != nil && x.life.serving && !over(x.life.member.Lost())
		h.mu.Unlock()
		if !serves {
			text += fmt.Sprintf("host %d does not serve; ", i)
		}
	}
	text += h.unmet(s.Map)
	for _, server := range s.Map.Servers {
		text += h.copiesMissing(s.Map, server)
	}
	return text
}

// copiesMissing says which copies of a server are not where they are to be. The copy at
// the host where the server is wished is one more than configured, and counts for none
// while wishes that contradict each other keep the server elsewhere.
func (h *hosts) copiesMissing(m *member.Map, server member.Server) string {
	able, have, extra, drained := 0, 0, 0, 0
	for host := range h.of {
		if host == server.Host {
			continue
		}
		has := m.Set(server.Index).Members.Has(m.Copy(server.Index, host))
		switch {
		case m.Drains(host):
			if has {
				drained++
			}
		case has && host == m.Wish(server.Index):
			extra++
			able++
		case has:
			have++
			able++
		default:
			able++
		}
	}
	if have+extra < min(h.replicas-1, able) {
		return fmt.Sprintf("server %d has %d copies in sync, of %d; ", server.Index, have+extra, min(h.replicas-1, able))
	}
	if have >= h.replicas-1 && drained > 0 {
		return fmt.Sprintf("a copy of server %d is at a drained host; ", server.Index)
	}
	return ""
}

// unmet says which wishes are not met although they can be. A host without its own
// server runs no other one, and a host with another one keeps its own. So wishes may
// contradict each other, and such servers may be anywhere.
func (h *hosts) unmet(m *member.Map) string {
	const anywhere = -1 // where it is not drained
	n := len(h.of)
	at, to, excused := make([]int, n), make([]int, n), make([]bool, n)
	for i := range n {
		s, _ := m.Server(placement.Server(i))
		if at[i], to[i] = s.Host, m.Wish(placement.Server(i)); m.Drains(to[i]) {
			to[i] = anywhere
		}
	}
	there := func(i int) bool { return at[i] == to[i] || to[i] == anywhere && !m.Drains(at[i]) }
	stays := func(host int) bool {
		return to[host] == host || to[host] == anywhere && at[host] == host && !m.Drains(host)
	}
	for i := range n {
		switch {
		case to[i] == anywhere:
			excused[i] = true
			for host := range n {
				if !m.Drains(host) && (host == i || stays(host)) {
					excused[i] = false
				}
			}
		case to[i] != i:
			excused[i] = !stays(to[i])
			for k := range n { // another one is to be at the host that it leaves
				excused[i] = excused[i] || k != i && to[k] == i
			}
		}
	}
	for range n {
		for i := range n {
			for k := range n {
				blocks := k != i && (at[i] == i && at[k] == i || to[i] == k && at[k] != k)
				excused[i] = excused[i] || blocks && excused[k]
			}
		}
	}
	text := ""
	for i := range n {
		if !there(i) && !excused[i] {
			text += fmt.Sprintf("server %d is at host %d, not at %d; ", i, at[i], to[i])
		}
	}
	return text
}

// settle waits until all is as it is to be.
func (h *hosts) settle() error {
	missing := ""
	for end := time.Now().Add(settleTime); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if missing = h.missing(h.members.now()); missing == "" {
			return nil
		}
	}
	return fmt.Errorf("the cluster does not settle: %s%+v", missing, h.members.now().Map)
}

// compare compares the logs of copies in sync with those of their homes: of what both
// have, every record must be the same.
func (h *hosts) compare() error {
	m := h.members.now().Map
	var errs []error
	for _, s := range m.Servers {
		dir := fmt.Sprintf("data/server-%d", s.Host)
		if s.Host != int(s.Index) {
			dir += fmt.Sprintf("/homes/server-%d", s.Index)
		}
		home, ok := h.of[s.Host].records(dir)
		for host, x := range h.of {
			if !ok || host == s.Host || !m.Set(s.Index).Members.Has(m.Copy(s.Index, host)) {
				continue
			}
			at := fmt.Sprintf("data/server-%d", host)
			if own, _ := m.Server(placement.Server(host)); own.Host != host {
				at = fmt.Sprintf("data/keeper-%d", host)
			}
			copied, _ := x.records(at + fmt.Sprintf("/copies/server-%d", s.Index))
			for pos, sum := range copied {
				if is, ok := home[pos]; ok && is != sum {
					errs = append(errs, fmt.Errorf("the copy of server %d at host %d, which is in sync, differs from its home at %d", s.Index, host, pos))
					break
				}
			}
			h.counts["copies compared"] += min(len(copied), 1)
		}
	}
	return errors.Join(errs...)
}

// records are the hashes of the records of a log, by their positions. ok is false if it
// cannot be read now.
func (x *simHost) records(dir string) (all map[wal.LSN]uint64, ok bool) {
	x.all.mu.Lock()
	fs := x.mem
	x.all.mu.Unlock()
	id, ok, err := datadir.Read(fs, dir)
	if err != nil || !ok {
		return nil, false
	}
	log, err := wal.Open(wal.Options{FS: fs, Dir: fs.PathJoin(dir, server.LogDir), Identity: id.Bytes(), Exists: true, ReadOnly: true})
	if err != nil {
		return nil, false
	}
	defer log.Close()
	all = map[wal.LSN]uint64{}
	err = log.Replay(log.First(), func(r *wal.Record) error {
		all[r.Start] = xxh3.Hash(r.Payload)
		return nil
	})
	return all, err == nil
}

// lastLoss ends a host for ever, and waits until its servers are at others: a copy in
// sync is as good as its home.
func (h *hosts) lastLoss() error {
	h.members.disorder()
	x := h.of[h.s.Intn(len(h.of))]
	h.w.As(x.name, func() { _, _ = x.kill(false) })
	h.count("last losses")
	for end := time.Now().Add(settleTime); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s, missing := h.members.now(), 0
		for _, server := range s.Map.Servers {
			if r, alive := s.Registered(server.Index); server.Host == x.i || !alive || r.Instance != server.Instance {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
	}
	return fmt.Errorf("nobody takes over what %s had: %+v", x.name, h.members.now().Map)
}

// The rules of moves that the store sees kept, whatever happens. The lock is held for
// those that follow.

// fault notes that a rule is broken.
func (m *simMembers) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.w.Event("broken: %s", text)
	m.broken.Lock()
	defer m.broken.Unlock()
	if len(m.broken.errs) < 5 {
		m.broken.errs = append(m.broken.errs, errors.New(text))
	}
}

// leaveMax is longer than it takes a server to leave its host: a copy that was in sync
// when that began may have left the set.
const leaveMax = 15 * time.Second

// leaves checks that a process may give a lease back which it has had for a server.
func (m *simMembers) leaves(l *simLease) {
	self := l.self
	if m.agreed == nil || l.h.closing.Load() || !l.h.serving.Load() {
		return // a process that starts or ends
	}
	now, ok := m.agreed.Server(self.Index)
	if !ok || now.Instance != self.Instance || !l.noted.Load() {
		return // it does not serve
	}
	for _, s := range m.agreed.Servers {
		if int(self.Index) == self.Host && s.Index != self.Index && s.Host == self.Host {
			m.fault("host %d gives its own server away, and has server %d", self.Host, s.Index)
		}
	}
	if file := l.h.held.Load(); file != nil && serverOf(*file, self.Host) == self.Index {
		m.fault("server %d leaves host %d, and goes on there: a call on %s has not ended", self.Index, self.Host, *file)
	}
	if since, ok := m.alone[self.Index]; ok && (m.orderly || time.Since(since) > leaveMax) {
		m.fault("server %d leaves host %d, and no copy of it is in sync", self.Index, self.Host)
	}
}

// serverOf is the data server at a host that has a file, -1 if it is of a copy.
func serverOf(file string, host int) placement.Server {
	var own, server placement.Server
	if _, err := fmt.Sscanf(file, "data/server-%d/", &own); err != nil || int(own) != host || strings.Contains(file, "/copies/") {
		return -1
	}
	if _, home, ok := strings.Cut(file, "/homes/"); ok {
		if _, err := fmt.Sscanf(home, "server-%d/", &server); err != nil {
			return -1
		}
		return server
	}
	return own
}

// newMax is longer than it takes a server to learn that a host is back: until then it
// may ask the store for a set without the host's copy.
const newMax = time.Second

// stays reports whether a registration is known to all. The host of it runs.
func (m *simMembers) stays(h *simHeld) bool { return h != nil && time.Since(h.since) > newMax }

// shrinks checks that no set becomes too small because an operator wants something.
func (m *simMembers) shrinks(next *member.Map) {
	if !m.orderly || m.agreed == nil {
		return
	}
	for _, s := range m.agreed.Servers {
		was, now := m.agreed.Set(s.Index), next.Set(s.Index)
		if was.Epoch != now.Epoch || bits.OnesCount8(uint8(now.Members)) >= m.copies {
			continue
		}
		for k := range replica.MaxMembers {
			host := replica.Host(replica.Member(k), s.Index, s.Host, m.agreed.Size)
			own, keeps := m.held[placement.Server(host)], m.held[placement.Server(m.agreed.Size+host)]
			runs := m.stays(own) && own.Host == host || m.stays(keeps)
			if runs && was.Members.Has(replica.Member(k)) && !now.Members.Has(replica.Member(k)) {
				m.fault("the copy of server %d at host %d leaves the set, which has %v then", s.Index, host, now.Members)
			}
		}
	}
}
