package member

import (
	"context"
	"errors"
	"time"
)

// Pauses between attempts of Follow while a store does not answer.
const (
	followPauseMin = 50 * time.Millisecond
	followPauseMax = 2 * time.Second
)

// Change replaces the map by the result of change, which gets a copy of the
// current map, or nil if there is none. It tries again if another change comes
// first, so change may be called more than once. If change returns an error,
// Change returns that error. If change returns nil, nil, the map stays as it
// is. change must not set the epoch. Change returns the resulting map.
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
		var current MapEpoch
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

// JoinWhenFree is Join, but waits while another instance holds the index: the
// instance of a server that died holds it until its lease runs out. ctx bounds
// the wait. When ctx ends, the error wraps the context's error, and ErrTaken if
// another instance held the index.
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

// WaitFor watches the store until ok accepts its state, and returns that state.
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

// Follow calls do with the state, and again with newer states, until ctx ends
// or the store is closed or replaced. It returns the reason. While the store
// does not answer, or holds an unreadable value, it calls failed, which may be
// nil, with the error, and keeps trying. It never calls do and failed
// concurrently.
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
