package member

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Pauses between attempts of Follow while a store does not answer.
const (
	followPauseMin = 50 * time.Millisecond
	followPauseMax = 2 * time.Second
)

// Change replaces the map by what change makes of a copy of it, and tries again
// if another change comes between. change gets nil if there is no map, may be
// called more than once, and gives up by an error, which is returned; if it
// returns nil, nil the map stays. It sets no epoch. Change returns the map that
// then is.
func Change(ctx context.Context, s Store, change func(*Map) (*Map, error)) (*Map, error) {
	for {
		state, err := s.State(ctx)
		if err != nil {
			return nil, err
		}
		next, err := change(state.Map.Clone())
		if err != nil {
			return nil, err
		}
		if next == nil {
			return state.Map, nil
		}
		var current Epoch
		if state.Map != nil {
			current = state.Map.Epoch
		}
		next.Epoch = current + 1
		if err = s.Swap(ctx, current, next); err == nil {
			return next.Clone(), nil
		}
		if !errors.Is(err, ErrEpoch) {
			return nil, err
		}
	}
}

// Admit puts a server into the map, or its new instance in the place of the one
// before. The first server makes the map, with partition p at server p modulo
// size. It fails with ErrShape if there is a map of other numbers of servers or
// partitions, and returns the map that names the server.
func Admit(ctx context.Context, s Store, size, partitions int, server Server) (*Map, error) {
	return Change(ctx, s, func(m *Map) (*Map, error) {
		if m == nil {
			m = &Map{Size: size, Primaries: make([]int, partitions)}
			for p := range m.Primaries {
				m.Primaries[p] = p % max(size, 1)
			}
		}
		if m.Size != size || len(m.Primaries) != partitions {
			return nil, fmt.Errorf("%w: %d servers and %d partitions, but server %d was started for %d and %d",
				ErrShape, m.Size, len(m.Primaries), server.Index, size, partitions)
		}
		if old, ok := m.Server(server.Index); ok && old.Instance == server.Instance && sameEndpoints(old, server) {
			return nil, nil
		}
		m.Put(server)
		return m, nil
	})
}

func sameEndpoints(a, b Server) bool {
	if len(a.Endpoints) != len(b.Endpoints) {
		return false
	}
	for i := range a.Endpoints {
		if a.Endpoints[i] != b.Endpoints[i] {
			return false
		}
	}
	return true
}

// JoinWhenFree is Join, but waits while another instance holds the index: that
// of a server that died does so until its lease runs out. ctx bounds the wait;
// when it ends, the error wraps the context's, and ErrTaken if the index was seen to be held.
func JoinWhenFree(ctx context.Context, s Store, server Server, ttl time.Duration) (Lease, error) {
	var taken error
	for {
		l, err := s.Join(ctx, server, ttl)
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, ErrTaken):
			return nil, errors.Join(taken, err)
		}
		taken = err
		if _, waitErr := WaitFor(ctx, s, func(state *State) bool {
			r, held := state.Registered(server.Index)
			return !held || r.Instance == server.Instance
		}); waitErr != nil {
			return nil, errors.Join(err, waitErr)
		}
	}
}

// WaitFor watches the store until its state is as asked.
func WaitFor(ctx context.Context, s Store, ok func(*State) bool) (*State, error) {
	var after Revision
	for {
		state, err := s.Watch(ctx, after)
		if err != nil {
			return nil, err
		}
		if ok(state) {
			return state, nil
		}
		after = state.Revision
	}
}

// Follow calls do with the state, and with every newer one as it comes, until
// ctx ends or the store is closed or replaced; it returns why. While the store does not
// answer, or holds what cannot be read, it calls failed, which may be nil, with
// the error and goes on trying. do and failed are not called at the same time.
func Follow(ctx context.Context, s Store, do func(*State), failed func(error)) error {
	var after Revision
	pause := followPauseMin
	for {
		state, err := s.Watch(ctx, after)
		switch {
		case err == nil:
			after, pause = state.Revision, followPauseMin
			do(state)
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrClosed), errors.Is(err, ErrReplaced):
			return err
		}
		if failed != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, followPauseMax)
	}
}
