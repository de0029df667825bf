//go:build verbs

package verbs

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// sysDevices is where the kernel lists RDMA devices.
const sysDevices = "/sys/class/infiniband"

// Built reports whether this binary has the provider: whether it was built
// with the tag verbs.
const Built = true

// wireVersion of the handshake and of messages. Both sides must have the same.
const wireVersion = 2

// Provider is the provider "verbs". Its methods are safe for concurrent use.
type Provider struct {
	opts   Options
	client [16]byte       // names this process to servers
	secret provide.Secret // of the cluster
}

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.Impersonator = (*Provider)(nil)
	_ rdma.Keyed        = (*Provider)(nil)
)

// SetSecret sets the secret that only the data servers of a cluster know. The
// endpoints of this provider require a proof of it from peers that dial as data
// servers, and the provider gives that proof when it dials as one. Before SetSecret
// the provider has a random secret, so that only the provider itself can dial its
// endpoints as a data server. SetSecret must be called before Listen and Dial.
func (p *Provider) SetSecret(secret []byte) { p.secret.Set(secret) }

// As returns the provider with another role for its dials. The name is not carried.
// Dials with a restriction to tables fail, because nothing tells peers apart.
func (p *Provider) As(who rdma.Identity) rdma.Provider { return &member{p, who} }

// member is a provider whose dials have a role.
type member struct {
	*Provider
	who rdma.Identity
}

// Dial is Provider.Dial in the member's role.
func (m *member) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	if m.who.Restricted() {
		return nil, fmt.Errorf("verbs: dial %q as %v: peers cannot be distinguished: %w", addr, &m.who, rdma.ErrUnsupported)
	}
	return m.dial(ctx, addr, m.who.Role)
}

// New returns the provider. It fails for options out of range. If there is no
// device, Listen and Dial fail with rdma.ErrUnsupported.
func New(o Options) (*Provider, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	p := &Provider{opts: o}
	_, _ = rand.Read(p.client[:]) // never fails
	return p, nil
}

// Name returns the provider's name on the command line.
func (*Provider) Name() string { return "verbs" }

// Unordered returns true: a device promises no order within a READ.
func (*Provider) Unordered() bool { return true }

// deviceAddr returns the address at which to listen by default.
func (p *Provider) deviceAddr() (netip.Addr, error) {
	return deviceAddr(sysDevices, p.opts.Device, interfaceAddrs)
}

// interfaceAddrs lists the addresses of a network interface.
func interfaceAddrs(name string) (all []netip.Addr) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addrs, _ := i.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr())
		}
	}
	return all
}

// scopeOf returns the number of an address zone.
func scopeOf(zone string) uint32 {
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}
