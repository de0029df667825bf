package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// An operator's wishes for a cluster of hosts are in its map, by a compare-and-swap: at
// which hosts servers are to be, and at which none is to be. The hosts carry them out,
// whichever process ends meanwhile, and the command only waits for that.

// ErrMove reports a move of data servers that cannot be made.
var ErrMove = errors.New("cluster: no move")

func noMove(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMove, fmt.Errorf(format, args...))
}

// hostsState returns the present state of a cluster of hosts. It fails with ErrMove if the
// cluster has none.
func (c *Cluster) hostsState(ctx context.Context) (*member.State, error) {
	s, err := c.Members(ctx)
	switch {
	case err != nil:
		return nil, err
	case s == nil || s.Map == nil:
		return nil, noMove("the data servers in %s are not found by a store of members: want a cluster with --replicas and --data-dir, or the address of its etcd", c.where)
	}
	return s, nil
}

// Where says at which host a data server is, and is to be.
type Where struct {
	Server     placement.Server      `json:"server"`
	Partitions []placement.Partition `json:"partitions"`
	Host       int                   `json:"host"` // where it is
	To         int                   `json:"to"`   // where it is to be
}

func whereIs(s *member.State, server placement.Server) Where {
	now, _ := s.Map.Server(server)
	partitions := slices.AppendSeq([]placement.Partition{}, s.Map.Placement.Of(server))
	return Where{Server: server, Partitions: partitions, Host: now.Host, To: aim(s, server)}
}

// ServerOf returns the data server that has a partition.
func (c *Cluster) ServerOf(ctx context.Context, partition placement.Partition) (placement.Server, error) {
	s, err := c.hostsState(ctx)
	if err != nil {
		return 0, err
	}
	server, ok := s.Map.Placement.Primary(partition)
	if !ok {
		return 0, noMove("partition %d: want 0 to %d, a partition of this cluster", partition, s.Map.Placement.Partitions()-1)
	}
	return server, nil
}

// Move records that a data server is to be at a host. The hosts then move it: Settle
// waits for that. A move that cannot be made is refused with ErrMove, and nothing is
// recorded.
func (c *Cluster) Move(ctx context.Context, server placement.Server, to int) (Where, error) {
	s, err := c.hostsState(ctx)
	if err != nil {
		return Where{}, err
	}
	if err := checkMove(s, server, to); err != nil {
		return Where{}, err
	}
	from := whereIs(s, server)
	_, err = member.Change(ctx, c.store, func(m *member.Map) (*member.Map, error) {
		if m == nil {
			return nil, member.ErrNoCluster
		}
		if m.Drains(to) {
			return nil, drainedError(to)
		}
		if !m.PutWish(server, to) {
			return nil, nil
		}
		return m, nil
	})
	from.To = to
	return from, err
}

func drainedError(host int) error {
	return noMove("host %d is drained, and takes no data server: want drtmx cluster undrain %d first", host, host)
}

// checkMove refuses a move that cannot be made now.
func checkMove(s *member.State, server placement.Server, to int) error {
	m := s.Map
	where, ok := m.Server(server)
	switch {
	case !ok || int(server) >= m.Size:
		return noMove("data server %d: want 0 to %d, a data server of this cluster", server, m.Size-1)
	case to < 0 || to >= m.Size:
		return noMove("host %d: want 0 to %d, a host of this cluster", to, m.Size-1)
	case m.Drains(to):
		return drainedError(to)
	case where.Host == to:
		return nil
	}
	if _, ok := s.Registered(server); !ok {
		return noMove("data server %d does not run: want it to be at a host, from which it can go", server)
	}
	if m.Set(server).Members == 0 {
		return noMove("data server %d has no copies: want a cluster with --replicas 2 or more", server)
	}
	if m.Copy(server, to) < 0 {
		return noMove("host %d cannot keep a copy of data server %d, which is at host %d: want one of the hosts after that, or host %d", to, server, where.Host, server)
	}
	if own := ownHost(server); to == own && m.Wish(server) != own {
		return nil // the wish is withdrawn
	}
	if !canRun(s, server, to) {
		if _, ok := keeperOf(s, to); ok {
			own, _ := m.Server(ownServer(to))
			return noMove("host %d keeps copies only, while its own data server is at host %d: want that back first", to, own.Host)
		}
		return noMove("host %d does not run: want one of %s", to, numberList(runningHosts(s)))
	}
	if others := serversBeside(m, where.Host); ownHost(server) == where.Host && len(others) > 0 {
		return noMove("host %d also has data server %s: want those moved before its own", where.Host, numberList(others))
	}
	return nil
}

// runningHosts returns the hosts that run.
func runningHosts(s *member.State) (all []int) {
	for host := range s.Map.Size {
		_, keeps := keeperOf(s, host)
		own, ok := s.Map.Server(ownServer(host))
		if _, alive := s.Registered(ownServer(host)); keeps || ok && alive && own.Host == host {
			all = append(all, host)
		}
	}
	return all
}

// serversBeside returns the data servers at a host other than its own.
func serversBeside(m *member.Map, host int) (all []placement.Server) {
	for _, s := range m.Servers {
		if s.Host == host && s.Index != ownServer(host) {
			all = append(all, s.Index)
		}
	}
	return all
}

func numberList[T ~int](numbers []T) string {
	if len(numbers) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ", "), "[]")
}

// settlePause is the time between two questions whether a server serves.
const settlePause = 20 * time.Millisecond

// AwaitPlaced waits until a data server is where it is to be, and serves. The error says
// what it waited for.
func (c *Cluster) AwaitPlaced(ctx context.Context, server placement.Server) (Where, error) {
	return c.awaitServed(ctx, server, func(w Where) bool { return w.Host == w.To })
}

// AwaitServing waits until a data server serves, wherever it is.
func (c *Cluster) AwaitServing(ctx context.Context, server placement.Server) (Where, error) {
	return c.awaitServed(ctx, server, func(Where) bool { return true })
}

// awaitServed waits until a data server serves at a place that may accepts.
func (c *Cluster) awaitServed(ctx context.Context, server placement.Server, may func(Where) bool) (Where, error) {
	var w Where
	reason := ""
	s, err := member.WaitFor(ctx, c.store, func(s *member.State) bool {
		if s.Map == nil {
			return false
		}
		w = whereIs(s, server)
		now, _ := s.Map.Server(server)
		r, alive := s.Registered(server)
		reason = waitsFor(s, w)
		return may(w) && alive && r.Instance == now.Instance
	})
	if err != nil {
		if ctx.Err() != nil {
			err = noMove("data server %d is at host %d and is to be at host %d: %s; it goes there when it can", server, w.Host, w.To, reason)
		}
		return w, err
	}
	f, ok := c.provider.(*multi.Provider)
	if !ok {
		return w, nil
	}
	for {
		now, _ := s.Map.Server(server)
		h, err := askServer(ctx, f, addressOf(now))
		if err == nil && h.Server == server {
			return w, nil
		}
		select {
		case <-ctx.Done():
			return w, noMove("data server %d is at host %d, and does not serve yet: %v", server, w.Host, err)
		case <-time.After(settlePause):
		}
		if next, err := c.hostsState(ctx); err == nil {
			if s = next; whereIs(s, server).Host != w.Host {
				return c.awaitServed(ctx, server, may)
			}
		}
	}
}

// waitsFor returns what a server waits for that is not where it is to be.
func waitsFor(s *member.State, w Where) string {
	if w.Host == w.To {
		return ""
	}
	if _, alive := s.Registered(w.Server); !alive {
		return "it is on its way"
	}
	if !canRun(s, w.Server, w.To) {
		return fmt.Sprintf("host %d does not run, or keeps copies only", w.To)
	}
	if !s.Map.Set(w.Server).Members.Has(s.Map.Copy(w.Server, w.To)) {
		return fmt.Sprintf("the copy at host %d is not in sync yet", w.To)
	}
	if ownHost(w.Server) == w.Host && len(serversBeside(s.Map, w.Host)) > 0 {
		return fmt.Sprintf("host %d also has data server %s", w.Host, numberList(serversBeside(s.Map, w.Host)))
	}
	return "it is about to go"
}

// Placement returns where the data servers are and are to be, why those that are
// elsewhere have not moved, and which hosts are drained. It is nil without a store of
// members.
func Placement(s *member.State) (all []Where, waits []string, drained []int) {
	if s == nil || s.Map == nil {
		return nil, nil, nil
	}
	for _, server := range s.Map.Servers {
		w := whereIs(s, server.Index)
		all, waits = append(all, w), append(waits, waitsFor(s, w))
	}
	return all, waits, s.Map.Drained
}

// Drain records that no data server and no copy is to be at a host. The hosts then move
// what is there: Drained waits for that. A drain that leaves too few hosts is refused
// with ErrMove, and nothing is recorded. It returns the data servers that will move.
func (c *Cluster) Drain(ctx context.Context, host int) (goes []Where, err error) {
	s, err := c.hostsState(ctx)
	if err != nil {
		return nil, err
	}
	_, err = member.Change(ctx, c.store, func(m *member.Map) (*member.Map, error) {
		if m == nil {
			return nil, member.ErrNoCluster
		}
		s.Map = m
		changes := m.Clone().PutDrained(host, true)
		if goes, err = checkDrain(s, host); err != nil || !changes {
			return nil, err
		}
		m.PutDrained(host, true)
		return m, nil
	})
	return goes, err
}

// checkDrain refuses to drain a host whose data servers no other host can take. It
// returns those servers, with the hosts to which they move.
func checkDrain(s *member.State, host int) (goes []Where, err error) {
	m := s.Map
	if host < 0 || host >= m.Size {
		return nil, noMove("host %d: want 0 to %d, a host of this cluster", host, m.Size-1)
	}
	next := &member.State{Map: m.Clone(), Alive: s.Alive}
	next.Map.PutDrained(host, true)
	for _, server := range m.Servers {
		if server.Host != host {
			continue
		}
		w := whereIs(next, server.Index)
		if w.To == host {
			return nil, noMove("no other host can take data server %d: want one that runs its own data server and is not drained", server.Index)
		}
		if m.Set(server.Index).Members == 0 {
			return nil, noMove("data server %d has no copies: want a cluster with --replicas 2 or more", server.Index)
		}
		goes = append(goes, w)
	}
	return goes, nil
}

// Undrain records that data servers and copies may be at a host again. Those that are
// to be there come back.
func (c *Cluster) Undrain(ctx context.Context, host int) error {
	s, err := c.hostsState(ctx)
	if err != nil {
		return err
	}
	if host < 0 || host >= s.Map.Size {
		return noMove("host %d: want 0 to %d, a host of this cluster", host, s.Map.Size-1)
	}
	_, err = member.Change(ctx, c.store, func(m *member.Map) (*member.Map, error) {
		if m == nil {
			return nil, member.ErrNoCluster
		}
		if !m.PutDrained(host, false) {
			return nil, nil
		}
		return m, nil
	})
	return err
}

// AwaitDrained waits until no data server is at a host, and no copy that another host could
// keep. The error says what it waited for.
func (c *Cluster) AwaitDrained(ctx context.Context, host int) error {
	reason := ""
	_, err := member.WaitFor(ctx, c.store, func(s *member.State) bool {
		reason = holds(s, host)
		return reason == ""
	})
	if err != nil && ctx.Err() != nil {
		err = noMove("host %d is not empty yet: %s; it is drained further", host, reason)
	}
	return err
}

// holds returns what is at a drained host and can move, "" if nothing.
func holds(s *member.State, host int) string {
	m := s.Map
	if m == nil || !m.Drains(host) {
		return "it is not drained"
	}
	for _, server := range m.Servers {
		if server.Host == host {
			return fmt.Sprintf("data server %d is there: %s", server.Index, waitsFor(s, whereIs(s, server.Index)))
		}
		if !m.Set(server.Index).Members.Has(m.Copy(server.Index, host)) {
			continue
		}
		for _, other := range runningHosts(s) {
			k := m.Copy(server.Index, other)
			if k > 0 && !m.Drains(other) && !m.Set(server.Index).Members.Has(k) {
				return fmt.Sprintf("the copy of data server %d there waits for one at another host to be in sync", server.Index)
			}
		}
	}
	return ""
}

// AwaitInSync waits until all data servers are where they are to be, and at least copies[s]
// copies of data server s are in sync. The error says what it waited for.
func (c *Cluster) AwaitInSync(ctx context.Context, copies map[placement.Server]int) error {
	reason := ""
	s, err := member.WaitFor(ctx, c.store, func(s *member.State) bool {
		if s.Map == nil {
			return false
		}
		for _, server := range s.Map.Servers {
			w := whereIs(s, server.Index)
			now := bits.OnesCount8(uint8(s.Map.Set(server.Index).Members))
			switch r, alive := s.Registered(server.Index); {
			case w.Host != w.To:
				reason = fmt.Sprintf("data server %d is to be at host %d: %s", server.Index, w.To, waitsFor(s, w))
				return false
			case !alive || r.Instance != server.Instance:
				reason = fmt.Sprintf("data server %d does not run", server.Index)
				return false
			case now < copies[server.Index]:
				reason = fmt.Sprintf("%d of %d copies of data server %d are in sync", now, copies[server.Index], server.Index)
				return false
			}
		}
		return true
	})
	if err != nil {
		if ctx.Err() != nil {
			err = noMove("not all is as it is to be: %s", reason)
		}
		return err
	}
	for _, server := range s.Map.Servers {
		if _, err := c.AwaitPlaced(ctx, server.Index); err != nil {
			return err
		}
	}
	return nil
}

// InSync returns how many copies of each data server's data are in sync, its own
// included.
func (c *Cluster) InSync(ctx context.Context) (map[placement.Server]int, error) {
	s, err := c.hostsState(ctx)
	if err != nil {
		return nil, err
	}
	all := map[placement.Server]int{}
	for _, server := range s.Map.Servers {
		all[server.Index] = bits.OnesCount8(uint8(s.Map.Set(server.Index).Members))
	}
	return all, nil
}

// CheckDrained fails with ErrMove unless a host is drained and nothing that could move is
// there.
func (c *Cluster) CheckDrained(ctx context.Context, host int) error {
	s, err := c.hostsState(ctx)
	if err != nil {
		return err
	}
	if host < 0 || host >= s.Map.Size {
		return noMove("host %d: want 0 to %d, a host of this cluster", host, s.Map.Size-1)
	}
	if why := holds(s, host); why != "" {
		return noMove("host %d: %s; want drtmx cluster drain %d first", host, why, host)
	}
	return nil
}

// AwaitLeft waits until no data server is at a drained host that has ended, and no copy there
// is in sync.
func (c *Cluster) AwaitLeft(ctx context.Context, host int) error {
	reason := ""
	_, err := member.WaitFor(ctx, c.store, func(s *member.State) bool {
		if reason = holds(s, host); reason != "" {
			return false
		}
		for _, server := range s.Map.Servers {
			if s.Map.Set(server.Index).Members.Has(s.Map.Copy(server.Index, host)) {
				reason = fmt.Sprintf("it has a copy of data server %d that is in sync", server.Index)
				return false
			}
		}
		return true
	})
	if err != nil && ctx.Err() != nil {
		err = noMove("host %d cannot be removed yet: %s", host, reason)
	}
	return err
}

// RemoveHost removes the data directory of a host, which has ended, from that of its
// cluster. It fails with datadir.ErrInUse if a process has the directory.
func RemoveHost(dir string, host int) error {
	at := HostDir(dir, host)
	if there, err := exists(vfs.Default, at); err != nil || !there {
		return err
	}
	for _, d := range []string{server.ServerDir(at, host), keeperDir(at, host)} {
		if there, err := exists(vfs.Default, d); err != nil || !there {
			if err != nil {
				return err
			}
			continue
		}
		l, err := datadir.Lock(vfs.Default, d)
		if err != nil {
			return err
		}
		defer l.Close()
	}
	if err := removeDir(at); err != nil {
		return fmt.Errorf("%w %s: %w", ErrData, dir, err)
	}
	return nil
}

// ZoneOf returns the zone of a host, empty if that is not known.
func ZoneOf(s *member.State, host int) string {
	if k, ok := keeperOf(s, host); ok {
		return k.Zone
	}
	if own, ok := s.Map.Server(ownServer(host)); ok && own.Host == host {
		return own.Zone
	}
	return ""
}

// HostStates returns the states of the hosts as the store of members knows them:
// HostRuns, HostKeeps, or HostEnded for one without a lease.
func HostStates(s *member.State) []string {
	all := make([]string, s.Map.Size)
	for host := range all {
		all[host] = HostEnded
	}
	for _, host := range runningHosts(s) {
		all[host] = HostRuns
		if _, keeps := keeperOf(s, host); keeps {
			all[host] = HostKeeps
		}
	}
	return all
}
