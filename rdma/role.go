package rdma

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Role is what a peer may ask of a data server. Each role includes the ones
// before it.
type Role uint8

// The roles.
const (
	RoleNone   Role = iota // nothing: a peer that did not say who it is
	RoleReader             // reads, lookups, scans, statistics
	RoleWriter             // and commits, procedure calls
	RoleLoader             // and bulk loads
	RoleServer             // a data server of the cluster: everything, the commit protocol included
)

var roleNames = [...]string{"none", "reader", "writer", "loader", "server"}

// Roles lists all roles, the least first.
func Roles() []Role { return []Role{RoleNone, RoleReader, RoleWriter, RoleLoader, RoleServer} }

func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// ParseRole is the inverse of String.
func ParseRole(name string) (Role, error) {
	if i := slices.Index(roleNames[:], name); i >= 0 {
		return Role(i), nil
	}
	return RoleNone, fmt.Errorf("rdma: role %q (want %s)", name, strings.Join(roleNames[1:], ", "))
}

// Identity says who a peer is. Its provider has authenticated it: over tcp by
// certificate where there is one; over tcp in plain text and verbs by the secret of
// the cluster, and over shm by the credentials of the process too; over inproc by the
// caller's word.
// An Identity is not changed once a connection has it.
type Identity struct {
	Role Role
	// Name is the peer's name: the common name of its certificate, or the name
	// that the peer states.
	Name string
	// Tables are the tables that a client may use, by name; nil means all.
	// Data servers may use all.
	Tables []string
}

// Restricted reports whether the peer may use only some tables.
func (i *Identity) Restricted() bool { return i.Role < RoleServer && i.Tables != nil }

// MayRead reports whether the peer may read regions with one-sided READs. A
// region holds rows of all tables, so that a peer that may use only some of
// them gets no grant at all, and asks the server for each row.
func (i *Identity) MayRead() bool { return i.Role >= RoleReader && !i.Restricted() }

// MayUse reports whether the peer may use a table.
func (i *Identity) MayUse(table string) bool {
	return !i.Restricted() || slices.Contains(i.Tables, table)
}

// Same reports whether two connections belong to one peer, as far as their
// providers can tell.
func (i *Identity) Same(j *Identity) bool {
	return i.Role == j.Role && i.Name == j.Name && (i.Tables == nil) == (j.Tables == nil) && slices.Equal(i.Tables, j.Tables)
}

func (i *Identity) String() string {
	s := i.Role.String()
	if i.Name != "" {
		s += " " + i.Name
	}
	if i.Restricted() {
		s += " of tables " + strings.Join(i.Tables, ", ")
	}
	return s
}

// ErrRole reports a peer that claims a role it cannot prove: a data server proves its own
// with the secret of its cluster, which SetSecret gives to a provider.
var ErrRole = errors.New("rdma: role not proved")

// Impersonator is a Provider whose dialler states its own identity: inproc, and
// shm, verbs and tcp in plain text, which require a proof from data servers. With TLS
// the role comes from a certificate.
type Impersonator interface {
	// As returns the provider with another identity for its dials.
	As(Identity) Provider
}

// Keyed is a Provider that proves the role of a data server by a secret of the
// cluster: shm, verbs and tcp in plain text, or several providers with one of them
// among them.
type Keyed interface {
	// SetSecret must be called before Listen and Dial.
	SetSecret(secret []byte)
}

// SetSecret sets p's secret of the cluster, if p uses one.
func SetSecret(p Provider, secret []byte) {
	if k, ok := p.(Keyed); ok {
		k.SetSecret(secret)
	}
}

// As returns p dialling with that identity if p can choose one, otherwise p.
func As(p Provider, who Identity) Provider {
	if i, ok := p.(Impersonator); ok {
		return i.As(who)
	}
	return p
}
