package server

import (
	"context"
	"sync"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/rdma"
)

// ownClient is a server's own client of the cluster, for procedures that leave their
// partition.
type ownClient struct {
	workers *workers
	cfg     exec.Config
	local   exec.Local

	sync.Mutex
	db      *exec.DB
	opening chan struct{} // not nil: it is being opened; closed at the end of the attempt
	err     error         // of the last attempt
}

// get returns the server's own client of the cluster, which is opened when first
// needed. No lock is held while it is opened, so that a server that does not answer
// delays only callers that need the client. Opening goes on when ctx ends, or else
// procedures with short deadlines would never get the client.
func (c *ownClient) get(ctx context.Context) (*exec.DB, error) {
	c.Lock()
	if db := c.db; db != nil {
		c.Unlock()
		return db, nil
	}
	opened := c.opening
	if opened == nil {
		opened = make(chan struct{})
		c.opening = opened
		c.workers.background(c.open)
	}
	c.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.Lock()
	defer c.Unlock()
	if c.db == nil {
		return nil, c.err
	}
	return c.db, nil
}

// open opens the server's own client.
func (c *ownClient) open() {
	ctx, cancel := context.WithTimeout(c.workers.ctx, peerTimeout)
	defer cancel()
	db, err := exec.OpenLocal(ctx, c.cfg, c.local)
	c.Lock()
	defer c.Unlock()
	if err == nil && c.workers.ctx.Err() != nil {
		db.Close()
		db, err = nil, rdma.ErrClosed
	}
	c.db, c.err = db, err
	close(c.opening)
	c.opening = nil
}

// observed returns the highest tick that the client has seen, 0 if it was never opened.
func (c *ownClient) observed() clock.Tick {
	c.Lock()
	db := c.db
	c.Unlock()
	if db == nil {
		return 0
	}
	return db.Observed()
}

func (c *ownClient) close() {
	c.Lock()
	defer c.Unlock()
	if c.db != nil {
		c.db.Close()
	}
}
