package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/placement"
)

const (
	root       = "/drtmx/"
	secretRoot = "/drtmx.secret/"
	mapKey     = "map"
	serversKey = "servers/"
	durableKey = "durable/"
	// namesMax bounds the clusters that an error lists.
	namesMax = 8
)

// Pauses of gRPC between attempts to connect; its own grow to two minutes.
const (
	connectPauseMin = 50 * time.Millisecond
	connectPauseMax = time.Second
)

// Store is a handle on the members of one cluster.
type Store struct {
	o      Options
	client *clientv3.Client
	prefix string
	tls    *tls.Config // nil: plain text
	clock  clock.Source

	life  context.Context // ends with Close
	end   context.CancelCauseFunc
	wg    sync.WaitGroup // renewals
	close sync.Once

	mu struct {
		sync.Mutex
		cluster uint64 // etcd's identity; 0 until it has answered
		seen    int64  // its highest revision
	}
}

var _ member.Store = (*Store)(nil)

// Open returns a handle on the members of a cluster. It sends one request to
// etcd, so that wrong endpoints, certificates or names are errors here.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &Store{o: o, prefix: root + o.Name + "/", clock: o.Clock.Or(clock.Now)}
	s.life, s.end = context.WithCancelCause(context.Background())
	if err := s.dial(); err != nil {
		s.end(err)
		return nil, err
	}
	state, err := s.State(ctx)
	if err == nil && o.Existing && state.Map == nil {
		err = s.noCluster(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenExisting returns a handle on the members of a cluster that exists.
func OpenExisting(ctx context.Context, l *member.Location) (member.Store, error) {
	s, err := Open(ctx, Options{Endpoints: l.Endpoints, Name: l.Name, TLS: (*TLS)(l.TLS), Existing: true})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// OpenAt returns a handle on the members of a cluster, which need not exist yet.
func OpenAt(ctx context.Context, l *member.Location) (member.Store, error) {
	s, err := Open(ctx, Options{Endpoints: l.Endpoints, Name: l.Name, TLS: (*TLS)(l.TLS)})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// dial creates the etcd client, which connects on first use.
func (s *Store) dial() error {
	c := clientv3.Config{
		Context: s.life, Logger: zap.NewNop(),
		DialTimeout: s.o.Timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: s.o.Timeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: connectPauseMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectPauseMax},
			MinConnectTimeout: s.o.Timeout,
		})},
	}
	scheme := "http://"
	if s.o.TLS != nil {
		var err error
		if c.TLS, err = s.o.TLS.Client(); err != nil {
			return err
		}
		s.tls, scheme = c.TLS, "https://"
	}
	for _, e := range s.o.Endpoints {
		if isSocket(e) {
			c.Endpoints = append(c.Endpoints, "unix://"+e)
			continue
		}
		c.Endpoints = append(c.Endpoints, scheme+e)
	}
	var err error
	if s.client, err = clientv3.New(c); err != nil {
		return fmt.Errorf("%w: etcd at %s: %w", member.ErrInput, s.at(), err)
	}
	return nil
}

func (s *Store) at() string { return strings.Join(s.o.Endpoints, ",") }

// Close lets the leases of this handle run out. See member.Store.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		s.end(member.ErrClosed)
		s.wg.Wait()
		err = s.client.Close()
		if errors.Is(err, context.Canceled) {
			err = nil // caused by the cancelled life
		}
	})
	return err
}

func serverKey(index placement.Server) string { return fmt.Sprintf("%s%03d", serversKey, index) }

// DurableKey returns the key that has what Durable returns.
func (s *Store) DurableKey(index placement.Server) string {
	return fmt.Sprintf("%s%s%03d", s.prefix, durableKey, index)
}

// State reads all keys of the cluster at one revision.
func (s *Store) State(ctx context.Context) (*member.State, error) {
	state, _, err := s.read(ctx)
	return state, err
}

// read is State, and also returns the revision in which the map was written, 0
// if there is no map.
func (s *Store) read(ctx context.Context) (*member.State, int64, error) {
	var resp *clientv3.GetResponse
	err := s.call(ctx, read, func(ctx context.Context) (h *pb.ResponseHeader, err error) {
		resp, err = s.client.Get(ctx, s.prefix, clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		return resp.Header, nil
	})
	if err != nil {
		return nil, 0, err
	}
	state := &member.State{Revision: member.Revision(resp.Header.Revision)}
	var mapRevision int64
	for _, kv := range resp.Kvs {
		key := strings.TrimPrefix(string(kv.Key), s.prefix)
		switch {
		case key == mapKey:
			mapRevision = kv.ModRevision
			state.Map, err = member.DecodeMap(kv.Value)
		case strings.HasPrefix(key, serversKey):
			var r member.Registration
			if r, err = s.registration(kv); err == nil {
				state.Alive = append(state.Alive, r)
			}
		}
		if err != nil {
			return nil, 0, fmt.Errorf("etcd at %s: key %s: %w", s.at(), kv.Key, err)
		}
	}
	return state, mapRevision, nil
}

// registration decodes a registration and checks that its index matches its
// key.
func (s *Store) registration(kv *mvccpb.KeyValue) (member.Registration, error) {
	server, err := member.DecodeServer(kv.Value)
	if err != nil {
		return member.Registration{}, err
	}
	if want := s.prefix + serverKey(server.Index); string(kv.Key) != want {
		return member.Registration{}, fmt.Errorf("%w: it holds server %d, whose key is %s", member.ErrCorrupt, server.Index, want)
	}
	return member.Registration{Server: *server, Term: uint64(kv.ModRevision)}, nil
}

// Swap writes the map if it has not changed since it was read. See
// member.Store.
func (s *Store) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	if err := member.CheckSwap(expected, next); err != nil {
		return err
	}
	value, err := member.EncodeMap(next)
	if err != nil {
		return err
	}
	state, revision, err := s.read(ctx)
	if err != nil {
		return err
	}
	var current member.MapEpoch
	if state.Map != nil {
		current = state.Map.Epoch
	}
	if current != expected {
		return &member.EpochError{Expected: expected, Current: current}
	}
	key := s.prefix + mapKey
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	resp, err := s.txn(ctx, unchanged, clientv3.OpPut(key, string(value)), clientv3.OpGet(key))
	if err != nil || resp.Succeeded {
		return err
	}
	e := &member.EpochError{Expected: expected}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		now, err := member.DecodeMap(kv.Value)
		if err != nil {
			return fmt.Errorf("etcd at %s: key %s: %w", s.at(), key, err)
		}
		e.Current = now.Epoch
	}
	return e
}

// Durable reads what was noted for an index. See member.Store.
func (s *Store) Durable(ctx context.Context, index placement.Server) (member.Durable, error) {
	d, _, err := s.readDurable(ctx, index)
	return d, err
}

// readDurable is Durable, and also returns the revision in which it was written.
func (s *Store) readDurable(ctx context.Context, index placement.Server) (d member.Durable, revision int64, err error) {
	kv, err := s.get(ctx, s.DurableKey(index))
	if err != nil || kv == nil {
		return d, 0, err
	}
	noted, err := member.DecodeDurable(kv.Value)
	if err != nil {
		return d, 0, fmt.Errorf("etcd at %s: key %s: %w", s.at(), kv.Key, err)
	}
	return *noted, kv.ModRevision, nil
}

// Secret reads the secret of the cluster, and writes one if there is none. See
// member.Store.
func (s *Store) Secret(ctx context.Context) ([]byte, error) {
	key := secretRoot + s.o.Name
	kv, err := s.get(ctx, key)
	if err != nil {
		return nil, err
	}
	if kv == nil {
		secret := member.NewSecret()
		absent := clientv3.Compare(clientv3.ModRevision(key), "=", 0)
		resp, err := s.txn(ctx, absent, clientv3.OpPut(key, string(secret)), clientv3.OpGet(key))
		if err != nil || resp.Succeeded {
			return secret, err
		}
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
			kv = kvs[0]
		}
	}
	if kv == nil || len(kv.Value) != member.SecretBytes {
		return nil, fmt.Errorf("etcd at %s: key %s: %w: want %d bytes; remove it and start all data servers again",
			s.at(), key, member.ErrCorrupt, member.SecretBytes)
	}
	return kv.Value, nil
}

// txn performs do if a comparison holds, otherwise the other operation.
func (s *Store) txn(ctx context.Context, when clientv3.Cmp, do, otherwise clientv3.Op) (*clientv3.TxnResponse, error) {
	return s.txnIf(ctx, []clientv3.Cmp{when}, do, otherwise)
}

// txnIf is txn for several comparisons.
func (s *Store) txnIf(ctx context.Context, when []clientv3.Cmp, do, otherwise clientv3.Op) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	err := s.call(ctx, change, func(ctx context.Context) (h *pb.ResponseHeader, err error) {
		resp, err = s.client.Txn(ctx).If(when...).Then(do).Else(otherwise).Commit()
		if err != nil {
			return nil, err
		}
		return resp.Header, nil
	})
	return resp, err
}

// Evict deletes a registration and revokes its lease. See member.Store.
func (s *Store) Evict(ctx context.Context, index placement.Server, instance member.Instance) error {
	key := s.prefix + serverKey(index)
	for {
		kv, err := s.get(ctx, key)
		if err != nil || kv == nil {
			return err
		}
		r, err := s.registration(kv)
		if err != nil {
			return fmt.Errorf("etcd at %s: key %s: %w", s.at(), key, err)
		}
		if r.Instance != instance {
			return nil
		}
		resp, err := s.txn(ctx, clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision),
			clientv3.OpDelete(key), clientv3.OpGet(key, clientv3.WithCountOnly()))
		if err != nil {
			return err
		}
		if resp.Succeeded {
			return s.revoke(ctx, clientv3.LeaseID(kv.Lease))
		}
	}
}

// get reads one key; it returns nil if the key does not exist.
func (s *Store) get(ctx context.Context, key string) (kv *mvccpb.KeyValue, err error) {
	err = s.call(ctx, read, func(ctx context.Context) (*pb.ResponseHeader, error) {
		resp, err := s.client.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) > 0 {
			kv = resp.Kvs[0]
		}
		return resp.Header, nil
	})
	return kv, err
}

// noCluster returns an ErrNoCluster that lists the existing clusters.
func (s *Store) noCluster(ctx context.Context) error {
	var names []string
	from := root
	for len(names) <= namesMax {
		var next string
		err := s.call(ctx, read, func(ctx context.Context) (*pb.ResponseHeader, error) {
			resp, err := s.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(root)),
				clientv3.WithLimit(1), clientv3.WithKeysOnly())
			if err != nil {
				return nil, err
			}
			if len(resp.Kvs) > 0 {
				next = string(resp.Kvs[0].Key)
			}
			return resp.Header, nil
		})
		if err != nil {
			return err
		}
		if next == "" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(next, root), "/")
		names = append(names, strconv.QuoteToASCII(name))
		from = clientv3.GetPrefixRangeEnd(path.Join(root, name) + "/")
	}
	has := "it has none"
	if len(names) > namesMax {
		names = append(names[:namesMax], "…")
	}
	if len(names) > 0 {
		has = "it has " + strings.Join(names, ", ")
	}
	return fmt.Errorf("%w: %q in etcd at %s: %s", member.ErrNoCluster, s.o.Name, s.at(), has)
}
