package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"drtmx/internal/member"
	"drtmx/internal/placement"
)

// renewals is the number of renewals within the duration of one.
const renewals = 3

// lease is the lease of one server. A goroutine renews it until it ends.
type lease struct {
	store *Store
	id    clientv3.LeaseID
	index placement.Server
	life  member.Incarnation
	ttl   time.Duration
	term  uint64
	stop  context.CancelCauseFunc // ends the renewals
	lost  chan struct{}

	mu struct {
		sync.Mutex
		count    uint64
		deadline time.Duration // by the store's clock
		err      error
	}
}

// Join takes a lease from etcd and then the index. See member.Store.
func (s *Store) Join(ctx context.Context, server member.Server, ttl time.Duration) (member.Lease, error) {
	if err := member.CheckJoin(&server, ttl); err != nil {
		return nil, err
	}
	value, err := member.EncodeServer(&server)
	if err != nil {
		return nil, err
	}
	asked := s.clock()
	var granted *clientv3.LeaseGrantResponse
	err = s.call(ctx, change, func(ctx context.Context) (h *pb.ResponseHeader, err error) {
		granted, err = s.client.Grant(ctx, int64(math.Ceil(ttl.Seconds())))
		if err != nil {
			return nil, err
		}
		return granted.ResponseHeader, nil
	})
	if err != nil {
		return nil, err
	}
	l := &lease{
		store: s, id: granted.ID, index: server.Index, life: server.Incarnation, ttl: time.Duration(granted.TTL) * time.Second, lost: make(chan struct{}),
	}
	l.mu.deadline = asked + l.ttl
	if l.term, err = s.take(ctx, &server, string(value), granted.ID); err != nil {
		// If this request fails, the granted lease runs out by itself.
		_ = s.revoke(context.WithoutCancel(ctx), granted.ID)
		return nil, err
	}
	var life context.Context
	life, l.stop = context.WithCancelCause(s.life)
	s.wg.Go(func() { l.renew(life) })
	return l, nil
}

// take writes the registration, unless another instance has one, and returns
// the revision of the write.
func (s *Store) take(ctx context.Context, server *member.Server, value string, id clientv3.LeaseID) (uint64, error) {
	key := s.prefix + serverKey(server.Index)
	var revision int64 // last known revision of the key
	var former clientv3.LeaseID
	for {
		resp, err := s.txn(ctx, clientv3.Compare(clientv3.ModRevision(key), "=", revision),
			clientv3.OpPut(key, value, clientv3.WithLease(id)), clientv3.OpGet(key))
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			if former != 0 {
				err = s.revoke(ctx, former)
			}
			return uint64(resp.Header.Revision), err
		}
		revision, former = 0, 0
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			r, err := s.registration(kv)
			if err != nil {
				return 0, fmt.Errorf("etcd at %s: key %s: %w", s.at(), key, err)
			}
			if r.Instance != server.Instance {
				return 0, &member.TakenError{Holder: r}
			}
			revision, former = kv.ModRevision, clientv3.LeaseID(kv.Lease)
		}
	}
}

// revoke ends a lease of etcd; it is no error if the lease has already ended.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) error {
	if id == 0 {
		return nil
	}
	return s.call(ctx, change, func(ctx context.Context) (*pb.ResponseHeader, error) {
		resp, err := s.client.Revoke(ctx, id)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return nil, nil
		case err != nil:
			return nil, err
		}
		return resp.Header, nil
	})
}

// renew renews the lease until it is lost or life ends.
func (l *lease) renew(life context.Context) {
	defer close(l.lost)
	interval := l.ttl / renewals
	wait := interval
	var last error
	for {
		select {
		case <-life.Done():
			l.setError(context.Cause(life))
			return
		case <-time.After(wait):
		}
		asked := l.store.clock()
		deadline := l.Deadline()
		if asked >= deadline {
			l.setError(fmt.Errorf("%w: server %d: not renewed within %v: %v", member.ErrLeaseLost, l.index, l.ttl, last))
			return
		}
		ctx, cancel := context.WithTimeout(life, min(interval, deadline-asked))
		ttl, err := l.store.keepAlive(ctx, l.id)
		cancel()
		switch {
		case life.Err() != nil:
		case err == nil && ttl <= 0 || errors.Is(err, rpctypes.ErrLeaseNotFound):
			l.setError(fmt.Errorf("%w: server %d: etcd at %s does not have it any more", member.ErrLeaseLost, l.index, l.store.at()))
			return
		case err != nil:
			last = err
			wait = min(retryPause, max(deadline-l.store.clock(), 0))
			continue
		default:
			l.mu.Lock()
			l.mu.count++
			l.mu.deadline = asked + time.Duration(ttl)*time.Second
			l.mu.Unlock()
		}
		wait = interval
	}
}

// keepAlive renews a lease once and returns its duration in seconds. The etcd
// client's KeepAliveOnce does not pause between attempts.
func (s *Store) keepAlive(ctx context.Context, id clientv3.LeaseID) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream
	stream, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseKeepAlive(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return 0, rpctypes.Error(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	return resp.TTL, nil
}

// setError stores the reason for which the lease ended. The caller then closes
// lost.
func (l *lease) setError(why error) {
	if errors.Is(why, member.ErrClosed) {
		why = fmt.Errorf("%w: the lease of server %d is no longer renewed", member.ErrClosed, l.index)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.err = why
}

func (l *lease) Stamp() member.Stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return member.Stamp{Term: l.term, Count: l.mu.count}
}

func (l *lease) Deadline() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.deadline
}

func (l *lease) TTL() time.Duration { return l.ttl }

func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Err() error {
	select {
	case <-l.lost:
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

// Advance notes how far the log is durable while the registration is the one that
// this lease has made. See member.Lease.
func (l *lease) Advance(ctx context.Context, log uint64) error {
	d := member.Durable{Incarnation: l.life, Log: log}
	value, err := member.EncodeDurable(&d)
	if err != nil {
		return err
	}
	s := l.store
	key, own := s.DurableKey(l.index), s.prefix+serverKey(l.index)
	for {
		if err := l.Err(); err != nil {
			return err
		}
		have, revision, err := s.readDurable(ctx, l.index)
		if err != nil || have.Incarnation == d.Incarnation && have.Log >= log {
			return err
		}
		when := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(key), "=", revision),
			clientv3.Compare(clientv3.ModRevision(own), "=", int64(l.term)),
		}
		resp, err := s.txnIf(ctx, when, clientv3.OpPut(key, string(value)), clientv3.OpGet(own))
		if err != nil || resp.Succeeded {
			return err
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].ModRevision != int64(l.term) {
			return fmt.Errorf("%w: server %d: etcd at %s does not have it any more", member.ErrLeaseLost, l.index, s.at())
		}
	}
}

func (l *lease) Leave(ctx context.Context) error {
	l.stop(fmt.Errorf("%w: server %d", member.ErrLeft, l.index))
	<-l.lost
	if ctx.Err() != nil {
		return context.Cause(ctx) // it runs out
	}
	return l.store.revoke(ctx, l.id)
}
