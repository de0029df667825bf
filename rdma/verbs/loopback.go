//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/rdma"
)

// swapTimeout bounds one atomic, and separately the connection that it may need. The
// registration of memory that it may need has a bound of its own, queryTimeout.
const swapTimeout = 5 * time.Second

// loopback is a connection of an endpoint to itself, by which this process has atomics that the
// device performs. It is made when it is first needed, and again after it has failed.
type loopback struct {
	client [16]byte // names it in requests for connections; nobody else knows it

	mu   sync.Mutex
	conn *conn
	far  *serverConn // its other end
	b    rdma.Batch
	old  [1]uint64
}

// Swap implements rdma.ApartAtomics.
func (e *endpoint) Swap(key rdma.RKey, addr, from, to uint64) (bool, error) {
	l := &e.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.open(e)
	if err == nil {
		l.far.extra.Add(key, rdma.AccessAtomic)
		l.b.Reset()
		l.b.CAS(key, addr, from, to, l.old[:])
		err = l.perform()
	}
	if err != nil {
		l.end()
		return false, fmt.Errorf("verbs: swap at %q: %w", e.Addr(), err)
	}
	return l.old[0] == from, nil
}

// perform performs the batch. As long as the clerk has not answered a query, the device
// has not had the atomic, and its time does not run.
func (l *loopback) perform() error {
	if err := l.conn.Post(&l.b); err != nil {
		return err
	}
	for {
		asked := l.conn.asking()
		ctx, cancel := context.WithTimeout(context.Background(), swapTimeout)
		err := l.conn.Wait(ctx, &l.b)
		cancel()
		if !asked || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// open makes the connection, if there is none.
func (l *loopback) open(e *endpoint) error {
	if l.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), swapTimeout)
	defer cancel()
	if e.Closed() {
		return rdma.ErrClosed
	}
	at, err := parseAddr(ctx, e.Addr(), e.p.deviceAddr)
	if err != nil {
		return err
	}
	c, err := e.p.connect(ctx, e.Addr(), toWire(at), &hello{version: wireVersion, client: l.client, role: rdma.RoleLoader})
	if err != nil {
		return err
	}
	c.managed = make(chan struct{})
	go c.manage()
	l.conn = c
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, far := range e.mu.conns { // one that has failed may still be there
		if far.domain.client == l.client && (l.far == nil || far.number > l.far.number) {
			l.far = far
		}
	}
	if l.far == nil {
		return rdma.ErrPeerDown
	}
	return nil
}

// end ends the connection: what has not taken effect will not. The lock is held.
func (l *loopback) end() {
	if l.far != nil {
		l.far.end()
		l.far.cut()
	}
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.conn, l.far = nil, nil
}

func (l *loopback) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}
