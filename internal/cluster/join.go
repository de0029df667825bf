package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/hosting"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/txn/stats"
)

const (
	// MinMemoryBytes is the least memory of a partition.
	MinMemoryBytes = 64 << 20
	// DefaultLease is the duration of a lease if the options give none.
	DefaultLease = 5 * time.Second
)

// ErrMember reports a data server that runs already.
var ErrMember = errors.New("cluster: data server runs already")

// JoinOptions describe one data server of a cluster. The other servers are
// separate processes, on this host or on others. The servers know each other by a list
// of addresses, or find each other in a store of members.
type JoinOptions struct {
	Size
	Index    placement.Server
	Provider rdma.Provider
	Workload Workload
	Log      *slog.Logger // nil means none
	// Addrs are the addresses of all data servers, in order: see MemberAddrs.
	// With a Store, they are left empty.
	Addrs []string
	// Dir, if set, is where the server's socket and its pid file are. It is
	// made if it does not exist, and shared with other data servers. Without one they
	// reach each other over networks only.
	Dir string
	// Secret is what the data servers of the cluster authenticate each other with, where
	// they have no certificates. It is the same for all, see ReadSecret; nil means the
	// secret of the Store if there is one, or else of Dir, which the servers then share.
	Secret []byte
	// MemoryBytes bounds the memory of the server's partitions together; 0
	// means the server package's bound for each.
	MemoryBytes uint64

	// Store, if set, keeps the members of the cluster. The caller owns it, and
	// closes it after the member.
	Store member.Store
	// Addr is the server's own address among the members: see multi.Address.
	Addr string
	// Lease is how long the server's lease lasts; 0 means DefaultLease.
	Lease time.Duration
	// Waiting, if set, is called with a description of what the server waits for.
	Waiting func(text string)
	// Recovering, if set, is called now and then while the server recovers.
	Recovering func(stats.Recovering)
	// Empty, if set, asks the process that has started all data servers to empty the
	// cluster.
	Empty func() error
	// Settled, if set, is closed when all hosts have had their chance to start. No server
	// is taken over before that.
	Settled <-chan struct{}

	// Return makes Join wait if another host has taken the server over: this host then
	// keeps copies, until the server comes back. Without it Join fails with
	// member.ErrElsewhere. It needs a Store, a directory and more than one replica.
	Return bool
	// Keeping, if set, is called when the host begins to keep copies, before it has its
	// data server back: see Return.
	Keeping func()
	// Serving, if set, is called when the host's own data server, which was at another
	// host since Join has returned, serves here again.
	Serving func()

	// Zone names what may fail together with this host, such as a machine, a rack or a
	// site. Copies are kept in as many zones as there are. If it is empty, the host's zone
	// is that of its number in the size; if the size has no zones, nothing is known.
	Zone string

	// at, if set, is the number of the host that has taken the server over, and home the
	// directory of its data there.
	at   *int
	home string

	around surroundings
}

// surroundings are the parts of the machine that a host runs on. The zero value is the
// real machine; simulated hosts have others.
type surroundings struct {
	disk      vfs.FS               // nil: the file system of the operating system
	configure func(*server.Config) // of each data server; may be nil
	// wrap, if set, returns a replacement for a data server of the host when the server
	// serves. Only tests set it.
	wrap    func(placement.Server, dataServer) dataServer
	segment int64 // bytes of the files of a keeper's logs; 0: the default
	// beside returns an address for a data server that the host takes over; nil means
	// JoinOptions.beside.
	beside func(server placement.Server) (addr string, p *multi.Provider, err error)
	// start starts data servers; nil means startServer.
	start func(server.Config) (dataServer, error)
	// closing returns how long Member.Close waits for the data server; nil means
	// closeTimeout.
	closing func() time.Duration
	paces
}

// paces are times that a host waits; 0 means the default of each.
type paces struct {
	// returnAfter is how long the copy at a server's own host must have been in sync
	// before the server is given back.
	returnAfter time.Duration
	// movePause is the pause after the first failed move. It doubles with each failure,
	// up to movePauseMax.
	movePause time.Duration
	// diskPatience is how long a write of a log, with its sync, may take while there is a
	// copy in sync: after that, another host goes on with the copy.
	diskPatience time.Duration
}

// or returns the times, with the defaults of those that are not set.
func (p paces) or() paces {
	return paces{
		returnAfter: cmp.Or(p.returnAfter, 2*time.Second), movePause: cmp.Or(p.movePause, 20*time.Second),
		diskPatience: cmp.Or(p.diskPatience, 10*time.Second),
	}
}

// fs is the file system of the host.
func (o *JoinOptions) fs() vfs.FS {
	if o.around.disk == nil {
		return vfs.Default
	}
	return o.around.disk
}

// host returns the number of the host, which is that of its own data server.
func (o *JoinOptions) host() int {
	if o.at != nil {
		return *o.at
	}
	return ownHost(o.Index)
}

// Hosted returns the number of the data server's partitions.
func (o *JoinOptions) Hosted() int {
	partitions := o.Partitions
	if partitions == 0 {
		partitions = o.Servers
	}
	return placement.Spread(partitions, o.Servers).Count(o.Index)
}

// check completes the options and reports all their faults.
func (o *JoinOptions) check() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	faults := o.Size.faults()
	if len(o.Zones) > int(o.Index) && o.Index >= 0 && o.Zone == "" && o.at == nil {
		o.Zone = o.Zones[o.Index]
	}
	if err := member.CheckZone(o.Zone); err != nil {
		faults = append(faults, err)
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Provider == nil {
		fault("no provider")
	}
	if o.Index < 0 || int(o.Index) >= o.Servers {
		fault("data server %d of %d, want 0 to %d", o.Index, o.Servers, o.Servers-1)
	} else if need := uint64(o.Hosted()) * MinMemoryBytes; o.MemoryBytes != 0 && o.MemoryBytes < need {
		fault("%d MiB of memory, want at least %d MiB: %d for each of the %d partitions of data server %d",
			o.MemoryBytes>>20, need>>20, MinMemoryBytes>>20, o.Hosted(), o.Index)
	}
	if o.Replicas > 1 && o.Store == nil {
		fault("%d replicas: without a store of members, data servers that are started one by one can have no copies", o.Replicas)
	}
	if o.Store == nil && len(o.Addrs) != o.Servers {
		fault("%d addresses for %d data servers", len(o.Addrs), o.Servers)
	}
	if len(o.Dir) > dirBytesMax {
		fault("directory %s has %d bytes; with sockets in it, at most %d fit", o.Dir, len(o.Dir), dirBytesMax)
	}
	return optionsError(faults)
}

// Member is a data server in this process. The data server of a host may go to another
// host and come back. Methods are safe for concurrent use.
type Member struct {
	o        JoinOptions
	life     context.Context // of a host
	end      context.CancelFunc
	attended chan struct{} // closed when the host no longer moves its server; nil: it never does
	lost     chan struct{} // closed with why
	why      error
	leads    atomic.Pointer[following]
	recovery *stats.Recovery
	turns    atomic.Uint64 // of attend
	readyAt  time.Duration // by clock.Now: since then the host's own server can move; 0: it cannot
	notYet   time.Duration // the server does not move before
	pause    time.Duration // after a move that has failed

	// What runs is changed by attend alone.
	server dataServer // nil while it is at another host
	pid    *pidFile   // nil without a directory
	place  *place     // nil without a store
	others *takeovers // nil if it has no copies of others

	once sync.Once
	err  error
}

// Join starts one data server in this process. With a Store it first waits
// until all other servers are members; while another instance holds its place,
// it waits until the lease of a server that died would have ended. The error
// wraps ErrOptions, ErrDir, ErrMember for a server that runs in its directory
// already, or ErrStart, or is one of package member.
func Join(ctx context.Context, o JoinOptions) (m *Member, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.around.paces = o.around.or()
	m = &Member{o: o, lost: make(chan struct{})}
	m.life, m.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			m, err = nil, errors.Join(err, m.Close())
		}
	}()
	if err = m.start(ctx); err != nil {
		return m, err
	}
	m.recovery = recovered(m.server)
	if m.others != nil && o.Return && keeperIndex(o.Servers, o.host()) < member.MaxServers {
		m.attended = make(chan struct{})
		go m.attend()
	}
	return m, nil
}

// start starts the data server. If it fails, nothing of it runs.
func (m *Member) start(ctx context.Context) (err error) {
	o := m.o
	m.place = nil
	defer func() {
		if err != nil {
			err = errors.Join(err, m.halt(false))
		}
	}()
	s := serverConfig(o.Workload, o.Size, o.Index, o.Addrs)
	if o.home != "" {
		s.Dir = o.home
	}
	if o.knowsSecret() { // the others may be asked before this server has its place
		if err = m.o.setSecret(ctx); err != nil {
			return err
		}
	}
	s.Provider, s.Log, s.Recovering, s.FS = o.Provider, o.Log, o.Recovering, o.around.disk
	at := hosting.Place{Empty: o.Empty}
	if o.around.configure != nil {
		o.around.configure(&s)
	}
	if o.Store != nil {
		if m.place, err = takeOwnPlace(ctx, &m.o, s); err != nil {
			return err
		}
		s.Addrs, at.Incarnation = m.place.addrs, m.place.self.Life()
		at.Registered = registeredIn(o.Store)
		if o.DataDir != "" {
			host := o.host()
			s.Sets, at.Host, at.Kept, at.Target, at.Leaves = storeSets{o.Store}, &host, m.place.keeps, m.place.target, m.place.leaves
			at.Zone = m.place.zone
			at.DialHost = m.place.dialHost(&m.o)
		}
		if o.at == nil && o.Replicas > 1 {
			if err = resumeTakeovers(&m.o, s.Dir, m.place.follows.newest()); err != nil {
				return err
			}
		}
		// A server at another host than its own has a provider of its own: the host may
		// not have seen the map from which this server has the addresses of the others.
		if f, ok := o.Provider.(*multi.Provider); ok {
			m.leadWith(f, m.place.follows)
		}
	}
	if o.Dir != "" {
		if o.at == nil && m.pid == nil {
			if m.pid, err = takePID(o.Dir, o.Index); err != nil {
				return err
			}
		}
		if !o.knowsSecret() {
			if err = m.o.setSecret(ctx); err != nil {
				return err
			}
		}
	}
	if o.MemoryBytes != 0 {
		s.MemoryBytes = o.MemoryBytes / uint64(o.Hosted())
	}
	if m.place != nil {
		at.Opened, m.place.dir, at.Holds, at.Left = m.place.dir, nil, m.place.holds, m.place.left
	}
	start := startServer
	if o.around.start != nil {
		start = o.around.start
	}
	if m.server, err = start(s.Hosted(hosting.Options{Place: at})); err != nil {
		m.server = nil
		return fmt.Errorf("%w: server %d: %w", ErrStart, o.Index, err)
	}
	if m.place != nil {
		m.place.serves(m.server)
	}
	if c, ok := m.server.(copies); ok && o.Store != nil && o.at == nil && o.Replicas > 1 {
		m.others = watchOthers(&m.o, m.place, c)
	}
	if o.around.wrap != nil {
		m.server = o.around.wrap(o.Index, m.server)
	}
	return nil
}

// halt ends what start has started. Its wait for a server that hangs is bounded. It
// releases the pid file with the member, before another process can have the place.
func (m *Member) halt(leaves bool) (err error) {
	if m.others != nil {
		err = m.others.close()
		m.others = nil
	}
	if m.server != nil {
		patience := closeTimeout
		if m.o.around.closing != nil {
			patience = m.o.around.closing()
		}
		cerr := closeWithin(m.server, patience)
		if errors.Is(cerr, errNotClosed) && m.place != nil {
			m.place.hangs.Store(true)
		}
		m.server = nil
		err = errors.Join(err, cerr)
	}
	if leaves {
		m.pid.release()
	}
	if m.place != nil {
		err = errors.Join(err, m.place.leave())
	}
	return err
}

// takeOwnPlace is takePlace for a host that may have to keep copies first. Another host
// may take the server over at any moment until this one has its place.
func takeOwnPlace(ctx context.Context, o *JoinOptions, s server.Config) (p *place, err error) {
	if o.at != nil {
		return takePlace(ctx, o, s)
	}
	for again := false; ; again = true {
		kept, err := comeBack(ctx, o)
		if err != nil {
			return nil, err
		}
		p, err := takePlace(ctx, o, s)
		if !errors.Is(err, member.ErrElsewhere) || !o.Return || again && !kept {
			return p, err
		}
	}
}

// registeredIn returns a function that returns the incarnation of a data server
// that is registered in a store now: that of its data, or of its process if it
// keeps data in memory; 0 if none is registered. It reads the store every time:
// only the store's present state proves that an earlier incarnation is gone.
func registeredIn(store member.Store) func(ctx context.Context, server placement.Server) (incarnation uint64, err error) {
	return func(ctx context.Context, server placement.Server) (uint64, error) {
		state, err := store.State(ctx)
		if err != nil || state.Map == nil {
			return 0, err
		}
		r, ok := state.Registered(server)
		if !ok {
			return 0, nil
		}
		// A process that holds the lease and was not admitted may have another state, and never serve.
		if now, ok := state.Map.Server(server); !ok || now.Instance != r.Instance {
			return 0, nil
		}
		return r.Life(), nil
	}
}

// Lost returns a channel that is closed when another instance has taken the server's
// place in the store, or when a server that has come back to its host does not start.
// It is nil without a store.
func (m *Member) Lost() <-chan struct{} {
	switch {
	case m.attended != nil:
		return m.lost
	case m.place == nil:
		return nil
	}
	return m.place.lost
}

// Err is nil until Lost is closed. The error wraps ErrDeposed if another instance has
// the place.
func (m *Member) Err() error {
	switch {
	case m.attended != nil:
		select {
		case <-m.lost:
			return m.why
		default:
			return nil
		}
	case m.place == nil:
		return nil
	}
	return m.place.deposed()
}

// Recovery returns what the data server had recovered when Join returned, nil if
// nothing.
func (m *Member) Recovery() *stats.Recovery { return m.recovery }

// Close stops the data server, removes its files, and gives up its lease. Its
// wait for a server that hangs is bounded. It may be called again.
func (m *Member) Close() error {
	m.once.Do(func() {
		m.end()
		if m.attended != nil {
			<-m.attended
		}
		m.err = m.halt(true)
	})
	return m.err
}
