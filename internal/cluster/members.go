package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma/multi"
)

// askPause is the time between two questions to data servers that do not serve yet.
const askPause = 50 * time.Millisecond

// endpointsOf returns the endpoints that a data server's address offers, the best
// first.
func endpointsOf(addr string) ([]member.Endpoint, error) {
	a, err := multi.ParseAddress(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	var all []member.Endpoint
	for _, p := range a.Parts() {
		all = append(all, member.Endpoint{Fabric: p.Fabric, Addr: p.Addr})
	}
	return all, nil
}

// addressOf returns the address with those endpoints of a server whose fabric is known
// here. It is empty if there are none.
func addressOf(s member.Server) string {
	var a multi.Address
	for _, e := range s.Endpoints {
		a.Add(e.Fabric, e.Addr)
	}
	return a.String()
}

// following keeps the newest state of a cluster's members, and resolves former
// addresses of servers to present ones.
type following struct {
	store   member.Store
	end     context.CancelFunc
	done    chan struct{}
	changed func(*member.State) // called with every new state; may be nil
	failed  func(error)         // called while the store does not answer; may be nil

	mu struct {
		sync.Mutex
		newest *member.Map
		index  map[string]placement.Server // by address that a server has or had
		err    error                       // of the store; nil once it answers again
		led    *multi.Provider
		news   chan struct{} // closed and replaced with every state or error
	}
}

// follow begins to follow. close ends it, and leaves the store open.
func follow(store member.Store, changed func(*member.State), failed func(error)) *following {
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{store: store, end: cancel, done: make(chan struct{}), changed: changed, failed: failed}
	f.mu.index, f.mu.news = map[string]placement.Server{}, make(chan struct{})
	go func() {
		defer close(f.done)
		// Follow ends with close, or when the store is closed or replaced. The
		// map then stays as it is.
		_ = member.Follow(ctx, store, f.take, f.missed)
	}()
	return f
}

func (f *following) close() {
	f.end()
	<-f.done
}

// notify wakes all that wait for news. The lock is held.
func (f *following) notify() {
	close(f.mu.news)
	f.mu.news = make(chan struct{})
}

func (f *following) take(s *member.State) {
	f.mu.Lock()
	f.mu.err = nil
	led, left := f.mu.led, []string(nil)
	if s.Map != nil {
		left = leftBehind(f.mu.newest, s.Map)
		f.mu.newest = s.Map
		for _, server := range s.Map.Servers {
			if addr := addressOf(server); addr != "" {
				f.mu.index[addr] = server.Index
			}
		}
	}
	f.notify()
	f.mu.Unlock()
	if led != nil {
		for _, addr := range left { // which is resolved to the new address by now
			led.Abandon(addr)
		}
	}
	if f.changed != nil {
		f.changed(s)
	}
}

// leftBehind returns the addresses at which a server was before another instance took
// its place. The former instance may be paused, and would keep its clients waiting.
func leftBehind(was, now *member.Map) (addrs []string) {
	if was == nil {
		return nil
	}
	for _, s := range was.Servers {
		if n, ok := now.Server(s.Index); ok && n.Instance != s.Instance {
			addrs = append(addrs, addressOf(s))
		}
	}
	return addrs
}

// lead makes the dials of a provider lead to where the servers are now, and ends its
// connections to where they were. The provider must not have been used yet.
func (f *following) lead(p *multi.Provider) {
	p.Resolve = f.resolve
	f.leads(p)
}

// leads makes f end the connections of a provider to where servers were.
func (f *following) leads(p *multi.Provider) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.led = p
}

func (f *following) missed(err error) {
	f.mu.Lock()
	f.mu.err = err
	f.notify()
	f.mu.Unlock()
	if f.failed != nil {
		f.failed(err)
	}
}

// newest returns the last map that was seen, nil if there was none.
func (f *following) newest() *member.Map {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.newest
}

// resolve returns the present address of the server that has or had an address, or the
// address itself if no server is known to have had it.
func (f *following) resolve(addr string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, known := f.mu.index[addr]
	if !known {
		return addr
	}
	s, ok := f.mu.newest.Server(i)
	if now := addressOf(s); ok && now != "" {
		return now
	}
	return addr
}

// complete waits for a map that names all servers, of the given epoch or a later
// one. progress, which may be nil, is called with each incomplete map. The error
// names the servers that are missing, and wraps the context's or the store's.
func (f *following) complete(ctx context.Context, from member.MapEpoch, progress func(*member.Map)) (*member.Map, error) {
	var last member.MapEpoch
	for {
		f.mu.Lock()
		m, err, news := f.mu.newest, f.mu.err, f.mu.news
		f.mu.Unlock()
		if m != nil && m.Epoch >= from && m.Complete() {
			return m.Clone(), nil
		}
		if m != nil && m.Epoch >= from && m.Epoch != last && progress != nil {
			last = m.Epoch
			progress(m.Clone())
		}
		select {
		case <-news:
		case <-f.done:
			return nil, errors.Join(err, member.ErrClosed)
		case <-ctx.Done():
			if err == nil && m != nil {
				err = fmt.Errorf("%w: %s", ErrNoAnswer, missing(m))
			}
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// missing names the servers that have not joined.
func missing(m *member.Map) string {
	var absent []string
	for i := range placement.Server(m.Size) {
		if _, ok := m.Server(i); !ok {
			absent = append(absent, fmt.Sprint(i))
		}
	}
	return fmt.Sprintf("%d of %d data servers have joined; missing: %s", len(m.Servers), m.Size, strings.Join(absent, ", "))
}

// addrsOf returns the addresses of the servers of a complete map.
func addrsOf(m *member.Map) ([]string, error) {
	addrs := make([]string, len(m.Servers))
	for i, s := range m.Servers {
		if addrs[i] = addressOf(s); addrs[i] == "" {
			return nil, fmt.Errorf("%w: data server %d offers no fabric that this binary knows: %v", ErrAddress, i, s.Endpoints)
		}
	}
	return addrs, nil
}

// connectMembers finds the data servers of a cluster whose members are kept in a store,
// and follows them. ask says that one of them must answer. The cluster is lost when a
// data server was started again without its state.
func connectMembers(ctx context.Context, f *multi.Provider, a *Address, open OpenMembers, ask bool) (*Cluster, error) {
	if open == nil {
		return nil, fmt.Errorf("%w %q: this program does not speak etcd", ErrAddress, a)
	}
	store, err := open(ctx, a.Members)
	if err != nil {
		return nil, err
	}
	var known struct {
		sync.Mutex
		cluster *Cluster
		from    *member.Map
	}
	watch := func(now *member.Map) {
		known.Lock()
		defer known.Unlock()
		if known.cluster != nil && now != nil {
			known.cluster.replaced(known.from, now)
		}
	}
	members := follow(store, func(s *member.State) { watch(s.Map) }, nil)
	leave := func() error {
		members.close()
		return store.Close()
	}
	m, addrs, err := membersMap(ctx, a, members)
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	members.lead(f)
	var found *wire.Hello
	if ask {
		if found, err = askUntilServed(ctx, store, f, a, addrs); err != nil {
			return nil, errors.Join(err, leave())
		}
	}
	c := newCluster(f, addrs)
	c.stop, c.all, c.hello, c.where, c.store = leave, true, found, a.String(), store
	known.Lock()
	known.cluster, known.from = c, m
	known.Unlock()
	watch(members.newest()) // a state may have come since the map was taken
	return c, nil
}

// membersMap waits for the map of all servers.
func membersMap(ctx context.Context, a *Address, members *following) (*member.Map, []string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("waited %v", connectTimeout))
	defer cancel()
	m, err := members.complete(ctx, 0, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", a, oneLine(err))
	}
	addrs, err := addrsOf(m)
	return m, addrs, err
}

// askUntilServed is askAnyServer while data servers are registered that do not
// answer: they start, or recover. It ends with ctx, or after connectTimeout if ctx
// has no deadline.
func askUntilServed(ctx context.Context, store member.Store, f *multi.Provider, a *Address, addrs []string) (*wire.Hello, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, connectTimeout)
		defer cancel()
	}
	for {
		h, err := askAnyServer(ctx, f, a, addrs)
		if err == nil {
			return h, nil
		}
		state, serr := store.State(ctx)
		if serr != nil || len(state.Alive) == 0 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%d of %d are registered: they start or recover, or cannot be reached)", err, registered(state, len(addrs)), len(addrs))
		case <-time.After(askPause):
		}
	}
}

// registered returns how many of the first servers data servers are registered.
func registered(s *member.State, servers int) (n int) {
	for i := range s.Alive {
		if int(s.Alive[i].Index) < servers { // keepers have higher numbers
			n++
		}
	}
	return n
}

// askAnyServer asks one server after the other for its hello, which has what the map
// lacks, until one answers.
func askAnyServer(ctx context.Context, f *multi.Provider, a *Address, addrs []string) (*wire.Hello, error) {
	var errs []error
	for _, addr := range addrs {
		m, err := askServer(ctx, f, addr)
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("%w at %s: %w", ErrNoAnswer, a, oneLine(errors.Join(errs...)))
}

// replaced records a loss if a server of the first map has another state in the second.
func (c *Cluster) replaced(from, to *member.Map) {
	for _, s := range from.Servers {
		now, ok := to.Server(s.Index)
		if ok && now.Life() != s.Life() {
			c.fail(fmt.Errorf("%w: data server %d was started again, at %s: its memory is gone", ErrLost, s.Index, addressOf(now)), nil)
			return
		}
	}
}

// line is an error whose text is one line.
type line struct{ error }

func (l line) Error() string { return strings.ReplaceAll(l.error.Error(), "\n", "; ") }
func (l line) Unwrap() error { return l.error }

func oneLine(err error) error { return line{err} }
