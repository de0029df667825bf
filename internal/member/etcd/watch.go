package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"drtmx/internal/member"
)

// watchRound is the duration of a watch before Watch checks that etcd still
// answers: the etcd client waits for a lost server without reporting it.
const watchRound = 2 * time.Second

// Watch waits for a revision with a change of this cluster. See member.Store.
func (s *Store) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	for {
		state, err := s.State(ctx)
		if err != nil || after == 0 {
			return state, err
		}
		if s.changed(ctx, int64(after)) {
			return s.State(ctx)
		}
	}
}

// changed waits for a change later than a revision, but no longer than a round.
// It reports no errors: the next request to etcd will.
func (s *Store) changed(ctx context.Context, after int64) bool {
	ctx, cancel := s.within(ctx, watchRound)
	defer cancel()
	ch := s.client.Watch(clientv3.WithRequireLeader(ctx), s.prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
	for resp := range ch {
		if resp.CompactRevision != 0 || len(resp.Events) > 0 {
			return true
		}
		if resp.Err() != nil {
			select { // a server without a leader answers at once
			case <-ctx.Done():
			case <-time.After(retryPause):
			}
			return false
		}
	}
	return false
}
