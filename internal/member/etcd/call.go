package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"drtmx/internal/member"
)

// kind is the kind of a request. It matters if the answer is lost: a change may
// then have been made.
type kind int

const (
	read kind = iota
	change
)

// retryPause is the time between attempts of a change that was not sent.
const retryPause = 50 * time.Millisecond

// diagnosis bounds the time for finding the cause of an error.
const diagnosis = 500 * time.Millisecond

// within derives the context of a request. It ends with the caller's context,
// when the handle is closed, or after the timeout.
func (s *Store) within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// call makes a request with all its bounds, and returns a typed error. do
// returns the header of the answer, or nil if the answer is an error that the
// caller does not treat as one.
func (s *Store) call(ctx context.Context, k kind, do func(context.Context) (*pb.ResponseHeader, error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.life.Err() != nil {
		return member.ErrClosed
	}
	s.mu.Lock()
	seen := s.mu.seen
	s.mu.Unlock()
	limited, cancel := s.within(ctx, s.o.Timeout)
	defer cancel()
	for {
		h, err := do(limited)
		if err == nil && h == nil {
			return nil
		}
		if err == nil {
			return s.answered(h, seen)
		}
		if !unsent(err) || limited.Err() != nil {
			return s.fail(ctx, k, err)
		}
		select {
		case <-limited.Done():
		case <-time.After(retryPause):
		}
	}
}

// answered checks that the same etcd has answered as before, and that it has
// kept its data. seen was its highest known revision when the request began.
func (s *Store) answered(h *pb.ResponseHeader, seen int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.cluster == 0 {
		s.mu.cluster = h.ClusterId
	}
	switch {
	case s.mu.cluster != h.ClusterId:
		return fmt.Errorf("%w: etcd at %s was cluster %x, now is %x", member.ErrReplaced, s.at(), s.mu.cluster, h.ClusterId)
	case h.Revision < seen:
		return fmt.Errorf("%w: etcd at %s was at revision %d, now is at %d", member.ErrReplaced, s.at(), seen, h.Revision)
	}
	s.mu.seen = max(s.mu.seen, h.Revision)
	return nil
}

// fail returns the typed error of a request.
func (s *Store) fail(ctx context.Context, k kind, err error) error {
	switch {
	case s.life.Err() != nil:
		return member.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var own rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &own) && own.Code() != codes.Unavailable && own.Code() != codes.DeadlineExceeded {
		return fmt.Errorf("%w: etcd at %s: %s", member.ErrRefused, s.at(), own.Error())
	}
	err = fmt.Errorf("%w: etcd at %s: %s", member.ErrUnreachable, s.at(), s.reason(err))
	if k == change && !unsent(err) {
		err = fmt.Errorf("%w; %w", err, member.ErrOutcome)
	}
	return err
}

// unsent reports whether a request certainly did not leave this process: there
// was no connection to send it on.
func unsent(err error) bool {
	text := status.Convert(err).Message()
	return status.Code(err) == codes.Unavailable &&
		(strings.Contains(text, "error while dialing") || strings.Contains(text, "Error while dialing") ||
			strings.Contains(text, "no address available") || strings.Contains(text, "no connection available"))
}

// reason describes why there is no answer. gRPC itself often reports only a
// timeout.
func (s *Store) reason(err error) string {
	text := status.Convert(err).Message()
	if i := strings.LastIndex(text, "desc = "); i >= 0 {
		text = strings.Trim(text[i+len("desc = "):], `"`)
	}
	text = strings.TrimPrefix(text, "transport: ")
	dead := s.dead()
	if len(dead) == len(s.o.Endpoints) {
		return strings.Join(dead, "; ")
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		text = fmt.Sprintf("no answer within %v", s.o.Timeout)
	}
	if strings.Contains(text, "server preface") || strings.Contains(text, "EOF") || strings.Contains(text, "no answer") {
		text += map[bool]string{
			true:  " (is it etcd, and does it speak TLS?)",
			false: " (is it etcd, and does it want TLS?)",
		}[s.o.TLS != nil]
	}
	return text
}

// connect opens a connection, with the TLS handshake if TLS is configured.
func (s *Store) connect(ctx context.Context, endpoint string) (net.Conn, error) {
	network := "tcp"
	if isSocket(endpoint) {
		network = "unix"
	}
	if s.tls == nil || network == "unix" {
		var d net.Dialer
		return d.DialContext(ctx, network, endpoint)
	}
	d := tls.Dialer{Config: s.tls}
	return d.DialContext(ctx, "tcp", endpoint)
}

// dead connects to each endpoint and returns the reasons of those that fail.
func (s *Store) dead() []string {
	ctx, cancel := context.WithTimeout(s.life, diagnosis)
	defer cancel()
	all := make([]string, len(s.o.Endpoints))
	var wg sync.WaitGroup
	for i, e := range s.o.Endpoints {
		wg.Go(func() {
			c, err := s.connect(ctx, e)
			if err != nil {
				all[i] = err.Error()
				return
			}
			c.Close()
		})
	}
	wg.Wait()
	var dead []string
	for _, why := range all {
		if why != "" {
			dead = append(dead, why)
		}
	}
	return dead
}
