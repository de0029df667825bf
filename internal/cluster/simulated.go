//go:build simulated

package cluster

import (
	"context"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// Machine replaces the real machine for a simulated host.
type Machine struct {
	FS           vfs.FS
	Configure    func(*server.Config) // changes the configuration of each data server; may be nil
	SegmentBytes int64                // size of the files of a keeper's logs
	// Beside returns an address for a data server that the host takes over, and the
	// provider with which it listens there.
	Beside func(server placement.Server) (addr string, p *multi.Provider, err error)
}

// RunOn makes a host run on a simulated machine.
func (o *JoinOptions) RunOn(m Machine) {
	o.around = surroundings{disk: m.FS, configure: m.Configure, segment: m.SegmentBytes, beside: m.Beside}
}

// Follow is Connect for a client that finds the data servers in a store, which the
// cluster closes.
func Follow(ctx context.Context, f *multi.Provider, store member.Store) (*Cluster, error) {
	a := &Address{Members: &member.Location{Endpoints: []string{"store:1"}, Name: membersName}}
	return connectMembers(ctx, f, a, func(context.Context, *member.Location) (member.Store, error) { return store, nil }, true)
}

// DataServers returns the data servers that run in the process of a host, in no
// particular order.
func (m *Member) DataServers() (all []*server.Server) {
	if s, ok := m.server.(*server.Server); ok {
		all = append(all, s)
	}
	if m.others == nil {
		return all
	}
	m.others.mu.Lock()
	defer m.others.mu.Unlock()
	for _, h := range m.others.mu.homes {
		if h.member != nil {
			all = append(all, h.member.DataServers()...)
		}
	}
	return all
}
