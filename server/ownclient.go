package server

import (
	"context"
	"sync"

	"drtmx/internal/exec"
	"drtmx/rdma"
)

// ownClient is a server's own client of the cluster, for procedures that leave their
// partition.
type ownClient struct {
	sync.Mutex
	db      *exec.DB
	opening chan struct{} // not nil: it is being opened; closed at the end of the attempt
	err     error         // of the last attempt
}

// clientDB returns the server's own client of the cluster, which is opened when first
// needed. No lock is held while it is opened, so that a server that does not answer
// delays only callers that need the client. Opening goes on when ctx ends, or else
// procedures with short deadlines would never get the client.
func (s *Server) clientDB(ctx context.Context) (*exec.DB, error) {
	s.client.Lock()
	if db := s.client.db; db != nil {
		s.client.Unlock()
		return db, nil
	}
	opened := s.client.opening
	if opened == nil {
		opened = make(chan struct{})
		s.client.opening = opened
		s.background(s.openClient)
	}
	s.client.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.client.Lock()
	defer s.client.Unlock()
	if s.client.db == nil {
		return nil, s.client.err
	}
	return s.client.db, nil
}

// openClient opens the server's own client.
func (s *Server) openClient() {
	ctx, cancel := context.WithTimeout(s.ctx, peerTimeout)
	defer cancel()
	db, err := exec.OpenLocal(ctx, exec.Config{Servers: s.cfg.Addrs, AllServers: true, Dial: s.cfg.Provider.Dial}, allPartitions{s})
	s.client.Lock()
	defer s.client.Unlock()
	if err == nil && s.ctx.Err() != nil {
		db.Close()
		db, err = nil, rdma.ErrClosed
	}
	s.client.db, s.client.err = db, err
	close(s.client.opening)
	s.client.opening = nil
}
