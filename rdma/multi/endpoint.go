package multi

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Listen opens an endpoint on every fabric that the address names. It fails
// with rdma.ErrUnsupported if this process lacks one of them.
func (p *Provider) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	a, err := ParseAddress(addr)
	if err != nil {
		return nil, err
	}
	e := &endpoint{}
	var served Address
	for _, w := range a.Parts() {
		at, elsewhere := w.Addr, w.Fabric != Shm && p.ListenAt != ""
		if elsewhere {
			at = p.ListenAt
		}
		if err := e.listen(w.Fabric, p.Member(w.Fabric), at, o); err != nil {
			return nil, errors.Join(err, e.Close())
		}
		if !elsewhere {
			w.Addr = e.all[len(e.all)-1].Addr() // which has the port that the system chose
		}
		served.Add(w.Fabric, w.Addr)
	}
	e.addr = served.String()
	p.mu.Lock()
	p.mu.listens = append(p.mu.listens, e.names...)
	p.mu.Unlock()
	return e, nil
}

// endpoint is one endpoint on each of several fabrics.
type endpoint struct {
	addr  string
	all   []rdma.Endpoint
	names []string // of the fabrics
}

// peerShift is where a PeerID has the number of its fabric. Providers count
// their peers from 1.
const peerShift = 62

// peer returns the number of a peer of fabric k, which no peer of another
// fabric has. It may be applied to its own result, because requests are reused.
func (e *endpoint) peer(k int, id rdma.PeerID) rdma.PeerID { return id | rdma.PeerID(k)<<peerShift }

func (e *endpoint) listen(name string, p rdma.Provider, addr string, o rdma.ListenOptions) error {
	if p == nil {
		return fmt.Errorf("%w: multi: this process does not have fabric %s", rdma.ErrUnsupported, name)
	}
	k := len(e.all)
	if gone := o.OnDisconnect; gone != nil {
		o.OnDisconnect = func(id rdma.PeerID) { gone(e.peer(k, id)) }
	}
	ep, err := p.Listen(addr, o)
	if err != nil {
		return err
	}
	e.all = append(e.all, ep)
	e.names = append(e.names, name)
	return nil
}

// Addr returns the address with all fabrics in it.
func (e *endpoint) Addr() string { return e.addr }

// Register grants access on all fabrics, under one key.
func (e *endpoint) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	var key rdma.RKey
	for k, ep := range e.all {
		other, err := ep.Register(r, a)
		if err != nil {
			return 0, err
		}
		if k > 0 && other != key {
			return 0, fmt.Errorf("%w: multi: fabrics %s and %s name a region %d and %d", rdma.ErrUnsupported, e.names[0], e.names[k], key, other)
		}
		key = other
	}
	return key, nil
}

// fabric returns the endpoint of a peer, and the peer's number there.
func (e *endpoint) fabric(peer rdma.PeerID) (rdma.Endpoint, rdma.PeerID) {
	if k := int(peer >> peerShift); k < len(e.all) {
		return e.all[k], peer & (1<<peerShift - 1)
	}
	return nil, 0
}

// Grant grants access on the peer's fabric.
func (e *endpoint) Grant(peer rdma.PeerID, key rdma.RKey, a rdma.Access) error {
	ep, id := e.fabric(peer)
	if ep == nil {
		return fmt.Errorf("multi: grant to peer %d of %q: %w", peer, e.addr, rdma.ErrPeerDown)
	}
	return ep.Grant(id, key, a)
}

// Revoke ends the peer's connection on its fabric.
func (e *endpoint) Revoke(peer rdma.PeerID) {
	if ep, id := e.fabric(peer); ep != nil {
		ep.Revoke(id)
	}
}

// AtomicsApart implements rdma.ApartAtomics. At most one fabric has such peers.
func (e *endpoint) AtomicsApart(peer rdma.PeerID) bool {
	ep, id := e.fabric(peer)
	a, ok := ep.(rdma.ApartAtomics)
	return ok && a.AtomicsApart(id)
}

// Swap implements rdma.ApartAtomics.
func (e *endpoint) Swap(key rdma.RKey, addr, from, to uint64) (bool, error) {
	for _, ep := range e.all {
		if a, ok := ep.(rdma.ApartAtomics); ok && a.AtomicsApart(0) {
			return a.Swap(key, addr, from, to)
		}
	}
	return false, fmt.Errorf("multi: swap at %q: no fabric has atomics that are not the processor's: %w", e.addr, rdma.ErrUnsupported)
}

// Serve handles the RPCs of all fabrics.
func (e *endpoint) Serve(h rdma.Handler) error {
	for k, ep := range e.all {
		err := ep.Serve(func(r *rdma.Request) {
			r.Peer = e.peer(k, r.Peer)
			h(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Cork and Uncork are rdma.Corker's, on all fabrics that have it.
func (e *endpoint) Cork() { e.corkers(rdma.Corker.Cork) }

func (e *endpoint) Uncork() { e.corkers(rdma.Corker.Uncork) }

func (e *endpoint) corkers(do func(rdma.Corker)) {
	for _, ep := range e.all {
		if c, ok := ep.(rdma.Corker); ok {
			do(c)
		}
	}
}

// Counters returns the sum over all fabrics.
func (e *endpoint) Counters() (sum rdma.Counters) {
	for _, ep := range e.all {
		sum = sum.Add(ep.Counters())
	}
	return sum
}

// AgentTime implements rdma.Agent.
func (e *endpoint) AgentTime() (sum time.Duration) {
	for _, ep := range e.all {
		if a, ok := ep.(rdma.Agent); ok {
			sum += a.AgentTime()
		}
	}
	return sum
}

// Refusals is rdma.Auditor's: the sums over all fabrics, by reason.
func (e *endpoint) Refusals() []rdma.Refusal {
	var all []rdma.Refusal
	for _, ep := range e.all {
		a, ok := ep.(rdma.Auditor)
		if !ok {
			continue
		}
		for _, r := range a.Refusals() {
			i := slices.IndexFunc(all, func(o rdma.Refusal) bool { return o.Reason == r.Reason })
			if i < 0 {
				all = append(all, r)
				continue
			}
			all[i].Count += r.Count
		}
	}
	return all
}

// Close closes the endpoints of all fabrics.
func (e *endpoint) Close() error {
	var errs []error
	for _, ep := range e.all {
		errs = append(errs, ep.Close())
	}
	return errors.Join(errs...)
}
