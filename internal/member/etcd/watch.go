package etcd

import (
	"context"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"drtmx/internal/member"
)

// watchRound is the duration of a watch before Watch checks that etcd still
// answers: the etcd client waits for a lost server without reporting it.
const watchRound = 10 * time.Second

// Watch waits for a revision with a change of this cluster. See member.Store.
func (s *Store) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	seen := int64(after)
	for {
		state, err := s.State(ctx)
		if err != nil || after == 0 {
			return state, err
		}
		changed := false
		if seen, changed = s.changed(ctx, seen); changed {
			return s.State(ctx)
		}
	}
}

// shows reports whether an event changes the State.
func (s *Store) shows(e *clientv3.Event) bool {
	return !strings.HasPrefix(string(e.Kv.Key), s.prefix+durableKey)
}

// changed waits for a change later than a revision, but no longer than a round. It
// returns the revision up to which there was none, so that events that do not change
// the State are read only once. It reports no errors: the next request to etcd will.
func (s *Store) changed(ctx context.Context, after int64) (seen int64, changed bool) {
	ctx, cancel := s.within(ctx, watchRound)
	defer cancel()
	ch := s.client.Watch(clientv3.WithRequireLeader(ctx), s.prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
	for resp := range ch {
		if resp.CompactRevision != 0 || slices.ContainsFunc(resp.Events, s.shows) {
			return after, true
		}
		for _, e := range resp.Events {
			after = max(after, e.Kv.ModRevision)
		}
		if resp.Err() != nil {
			select { // a server without a leader answers at once
			case <-ctx.Done():
			case <-time.After(retryPause):
			}
			return after, false
		}
	}
	return after, false
}
