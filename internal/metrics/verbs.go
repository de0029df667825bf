package metrics

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/rdma"
)

// verbs are the families of one side of a fabric.
type verbs struct{ rounds, verbs, bytes, rpcs, rpcBytes, errors *Family }

var (
	serverVerbs = newVerbs("drtmx_fabric", ", as the data server sees them: one-sided ones only over providers that perform them on its side", "server", "provider")
	clientVerbs = newVerbs("drtmx_client_fabric", " on this process's connections", "provider")
)

func newVerbs(prefix, where string, labels ...string) *verbs {
	with := func(more string) []string { return append(labels[:len(labels):len(labels)], more) }
	return &verbs{
		rounds:   counter(prefix+"_rounds_total", "Doorbells rung"+where+".", labels...),
		verbs:    counter(prefix+"_verbs_total", "Work requests completed"+where+".", with("op")...),
		bytes:    counter(prefix+"_bytes_total", "Bytes moved by READs and WRITEs"+where+".", with("op")...),
		rpcs:     counter(prefix+"_rpcs_total", "RPCs"+where+".", labels...),
		rpcBytes: counter(prefix+"_rpc_bytes_total", "Bytes of requests and responses"+where+".", labels...),
		errors:   counter(prefix+"_errors_total", "Work requests that failed"+where+"; status access is an access violation.", with("status")...),
	}
}

func (v *verbs) all() []*Family {
	return []*Family{v.rounds, v.verbs, v.bytes, v.rpcs, v.rpcBytes, v.errors}
}

func (v *verbs) send(ch chan<- prometheus.Metric, n *rdma.Counters, labels ...string) {
	with := func(more string) []string { return append(labels[:len(labels):len(labels)], more) }
	send(ch, v.rounds, n.Rounds, labels...)
	send(ch, v.verbs, n.Reads, with("read")...)
	send(ch, v.verbs, n.Writes, with("write")...)
	send(ch, v.verbs, n.Atomics, with("atomic")...)
	send(ch, v.bytes, n.ReadBytes, with("read")...)
	send(ch, v.bytes, n.WriteBytes, with("write")...)
	send(ch, v.rpcs, n.RPCs, labels...)
	send(ch, v.rpcBytes, n.RPCBytes, labels...)
	send(ch, v.errors, n.Denied, with("access")...)
	send(ch, v.errors, n.Lost, with("peer_down")...)
	send(ch, v.errors, n.Faults-min(n.Denied+n.Lost, n.Faults), with("other")...)
}

// Meter sums the traffic of the connections that are dialled through it. It
// adds no cost to them: it reads the counters that connections keep anyway, and
// registers a connection when it is made and when it is closed. The zero value
// is ready. Methods are safe for concurrent use.
type Meter struct {
	mu     sync.Mutex
	open   map[*metered]struct{}
	closed rdma.Counters // sum of those closed
}

// metered is a connection of a Meter.
type metered struct {
	rdma.Conn
	m *Meter
}

// Dial returns a dial function that registers its connections with the meter.
func (m *Meter) Dial(dial func(context.Context, string) (rdma.Conn, error)) func(context.Context, string) (rdma.Conn, error) {
	return func(ctx context.Context, addr string) (rdma.Conn, error) {
		c, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		w := &metered{Conn: c, m: m}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.open == nil {
			m.open = map[*metered]struct{}{}
		}
		m.open[w] = struct{}{}
		return w, nil
	}
}

// Close closes the connection; the meter keeps its counts.
func (c *metered) Close() error {
	err := c.Conn.Close()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if _, ok := c.m.open[c]; ok { // Close may be called again
		delete(c.m.open, c)
		c.m.closed = c.m.closed.Add(c.Counters())
	}
	return err
}

// Counters returns the sum over all connections ever made, and the number of
// open ones.
func (m *Meter) Counters() (sum rdma.Counters, open int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum = m.closed
	for c := range m.open {
		sum = sum.Add(c.Counters())
	}
	return sum, len(m.open)
}
