package multi

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"drtmx/rdma"
)

// Names of the fabrics that a Provider can have.
const (
	Shm   = "shm"
	TCP   = "tcp"
	Verbs = "verbs"
)

// Names are the names of the fabrics, the best first.
var Names = []string{Shm, Verbs, TCP}

// Address says where one endpoint listens, by fabric. As text it is
// verbs:host:port, tcp:host:port and shm:/dir/s0.sock, those that there are, in
// this order and joined by plus signs. Text without a prefix is a host:port of
// tcp, or a socket.
type Address struct {
	Verbs string // host:port; empty if there is none
	TCP   string // host:port; empty if there is none
	Shm   string // socket; empty if there is none
}

func (a Address) String() string {
	var parts []string
	for _, p := range a.parts() {
		if *p.addr != "" {
			parts = append(parts, p.fabric+":"+*p.addr)
		}
	}
	return strings.Join(parts, "+")
}

// Part is the address on one fabric.
type Part struct {
	Fabric, Addr string
}

// Parts are the addresses on the fabrics that there are, the best fabric first.
func (a Address) Parts() []Part {
	var all []Part
	for _, p := range []Part{{Shm, a.Shm}, {Verbs, a.Verbs}, {TCP, a.TCP}} {
		if p.Addr != "" {
			all = append(all, p)
		}
	}
	return all
}

// Add sets the address on a fabric, unless it is set or the fabric is unknown.
func (a *Address) Add(fabric, addr string) {
	for _, p := range a.parts() {
		if p.fabric == fabric && *p.addr == "" {
			*p.addr = addr
		}
	}
}

// field is the address on one fabric, to be set or read.
type field struct {
	fabric string
	addr   *string
}

// parts are all fields, in the order of the text.
func (a *Address) parts() []field {
	return []field{{Verbs, &a.Verbs}, {TCP, &a.TCP}, {Shm, &a.Shm}}
}

// ParseAddress parses the text of an Address. Its error wraps rdma.ErrAddress.
func ParseAddress(s string) (Address, error) {
	var a Address
	rest, found := s, false
	for _, p := range a.parts() {
		tail, ok := strings.CutPrefix(rest, p.fabric+":")
		if !ok {
			continue
		}
		found = true
		if *p.addr, rest = tail, ""; p.fabric == Shm {
			break
		}
		host, more, joined := strings.Cut(tail, "+")
		if *p.addr, rest = host, more; joined && more == "" {
			*p.addr = "" // nothing follows the plus sign
		}
		if _, _, err := net.SplitHostPort(*p.addr); err != nil {
			return Address{}, malformed(s)
		}
	}
	switch {
	case !found && IsHostPort(s):
		return Address{TCP: s}, nil
	case !found && s != "":
		return Address{Shm: s}, nil
	case !found || rest != "" || strings.HasSuffix(s, Shm+":") || hasPrefix(a.Shm):
		return Address{}, malformed(s)
	}
	return a, nil
}

// hasPrefix reports whether the name of a socket begins like another part of an
// address: a part in the wrong place.
func hasPrefix(socket string) bool {
	for _, name := range Names {
		if strings.HasPrefix(socket, name+":") {
			return true
		}
	}
	return false
}

func malformed(s string) error {
	return fmt.Errorf("%w %q: want verbs:host:port, tcp:host:port or shm:socket, or several in this order joined by +", rdma.ErrAddress, s)
}

// IsHostPort reports whether addr is a network address, and not the name of a
// socket.
func IsHostPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	_, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && !strings.ContainsAny(addr, "/@+")
}
