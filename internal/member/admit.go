package member

import (
	"context"
	"fmt"
	"slices"

	"drtmx/internal/placement"
)

// Claim is what a data directory has recorded about its server's place. It proves that
// the place is that of the directory. The zero Claim is that of a server in memory.
type Claim struct {
	// Cluster is the cluster in which the directory has a place; 0: none yet.
	Cluster ClusterID
	// Admitted is the last instance that is known to have been admitted with this
	// directory, and Tried the last one that asked for it; 0: none.
	Admitted, Tried Instance
	// New reports a directory that has no data yet.
	New bool
	// Log is the end of the directory's log.
	Log uint64
	// Record makes a claim durable in the directory. Admit calls it before the map can
	// name the server; its argument is the claim of the next start.
	Record func(Claim) error
}

// Check returns an error that wraps ErrShape or ErrPlace unless a server with
// this claim may be admitted. m is nil if there is no map. Nothing is changed.
func (c *Claim) Check(m *Map, size, partitions int, server Server) error {
	if m == nil {
		if c.Cluster != 0 {
			return fmt.Errorf("%w: the directory of server %d belongs to cluster %v, and the store has no cluster of this name: it has lost its data, or is another one",
				ErrPlace, server.Index, c.Cluster)
		}
		return nil
	}
	if m.Size != size || m.Placement.Partitions() != partitions {
		return fmt.Errorf("%w: %d servers and %d partitions, but server %d was started for %d and %d",
			ErrShape, m.Size, m.Placement.Partitions(), server.Index, size, partitions)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: server %d of cluster %v: %s", ErrPlace, server.Index, m.ID, fmt.Sprintf(format, args...))
	}
	if c.Cluster != 0 && c.Cluster != m.ID {
		return refuse("the directory belongs to cluster %v", c.Cluster)
	}
	old, _ := m.Server(server.Index)
	switch {
	case old.Incarnation == 0 && c.Admitted != 0:
		return refuse("the store does not know the place of the directory: it has lost data")
	case old.Incarnation == 0:
		return nil
	case old.Host != server.Host:
		return fmt.Errorf("%w: server %d of cluster %v is at host %d, which had a copy of its data", ErrElsewhere, server.Index, m.ID, old.Host)
	case server.Incarnation == 0:
		return refuse("its data is in a directory, incarnation %v; want --data-dir", old.Incarnation)
	case c.New:
		return refuse("its data is in another directory, incarnation %v, and this one is empty", old.Incarnation)
	case old.Incarnation != server.Incarnation:
		return refuse("its data is in another directory, incarnation %v, and this one has incarnation %v", old.Incarnation, server.Incarnation)
	case old.Instance != server.Instance && old.Instance != c.Admitted && old.Instance != c.Tried:
		return refuse("instance %v has served its data since, of which this directory knows nothing: it is an older copy", old.Instance)
	}
	return nil
}

// checkLog returns an error that wraps ErrPlace if the directory's log ends before the
// position that was noted for the same state: see Lease.Advance. key is where the note
// is, "" if that has no name.
func (c *Claim) checkLog(d Durable, server Server, key string) error {
	if server.Incarnation == 0 || d.Incarnation != server.Incarnation || c.Log >= d.Log {
		return nil
	}
	if key != "" {
		key = " by the key " + key
	}
	return fmt.Errorf("%w: server %d of cluster %v: the log of the directory ends at %d, and was durable up to %d%s: it is an older copy of the same life, or its log was cut",
		ErrPlace, server.Index, c.Cluster, c.Log, d.Log, key)
}

// Admit puts a server into the map, or replaces its previous instance there.
// The first server creates the map, with the placement of a new cluster.
// Admit returns the map that names the server. It fails with ErrShape if the
// map has another number of servers or partitions, and with ErrPlace unless the
// claim proves that a durable server's data is that of the place.
//
// Of several copies of one directory, at most one is admitted: the map names the
// instance that was admitted last, and only the directory on which that instance
// was admitted knows it. A copy that was made during the life of that instance knows
// it, too, and is refused if its log does not reach what the instance has noted.
func Admit(ctx context.Context, s Store, size, partitions int, server Server, c Claim) (*Map, error) {
	found := func(m *Map) (*Map, error) {
		if err := c.Check(m, size, partitions, server); err != nil || m != nil {
			return nil, err
		}
		return &Map{ID: ClusterID(random()), Size: size, Placement: placement.Spread(partitions, size)}, nil
	}
	noted, err := s.Durable(ctx, server.Index)
	if err != nil {
		return nil, err
	}
	key := ""
	if keyed, ok := s.(interface {
		DurableKey(server placement.Server) string
	}); ok {
		key = keyed.DurableKey(server.Index)
	}
	if err := c.checkLog(noted, server, key); err != nil {
		return nil, err
	}
	if c.Record != nil { // it records a cluster that exists
		if _, err := Change(ctx, s, found); err != nil {
			return nil, err
		}
	}
	return Change(ctx, s, func(m *Map) (*Map, error) {
		if err := c.Check(m, size, partitions, server); err != nil {
			return nil, err
		}
		if m == nil {
			m, _ = found(nil)
		}
		old, ok := m.Server(server.Index)
		if ok && old.Instance == server.Instance && old.Incarnation == server.Incarnation && old.Zone == server.Zone && slices.Equal(old.Endpoints, server.Endpoints) {
			return nil, nil
		}
		if c.Record != nil {
			next := Claim{Cluster: m.ID, Tried: server.Instance}
			if old.Incarnation != 0 {
				next.Admitted = old.Instance
			}
			if err := c.Record(next); err != nil {
				return nil, err
			}
		}
		m.Put(server)
		return m, nil
	})
}
