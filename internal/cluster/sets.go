package cluster

import (
	"context"
	"fmt"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
)

// storeSets holds the sets of copies in sync in the map of a membership store.
type storeSets struct{ store member.Store }

// Set implements server.Sets.
func (s storeSets) Set(ctx context.Context, server placement.Server) (replica.Set, error) {
	state, err := s.store.State(ctx)
	if err != nil || state.Map == nil {
		return replica.Set{}, err
	}
	return state.Map.Set(server), nil
}

// SwapSet implements server.Sets.
func (s storeSets) SwapSet(ctx context.Context, server placement.Server, from, to replica.Set) (replica.Set, error) {
	m, err := member.Change(ctx, s.store, func(m *member.Map) (*member.Map, error) {
		if m == nil {
			return nil, fmt.Errorf("%w: the store has no map", member.ErrNoCluster)
		}
		if m.Set(server) != from {
			return nil, nil
		}
		m.PutSet(server, to)
		return m, nil
	})
	if err != nil {
		return replica.Set{}, err
	}
	return m.Set(server), nil
}
