package server

import (
	"fmt"
	"sync/atomic"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// leastRole is the role that a peer needs for each request. A request that is
// not listed is for data servers only.
var leastRole = map[wire.Op]rdma.Role{
	wire.OpHello:   rdma.RoleReader,
	wire.OpRead:    rdma.RoleReader,
	wire.OpStats:   rdma.RoleReader,
	wire.OpAdopt:   rdma.RoleReader,
	wire.OpLease:   rdma.RoleReader,
	wire.OpCommit:  rdma.RoleWriter,
	wire.OpCall:    rdma.RoleWriter,
	wire.OpOutcome: rdma.RoleWriter,
	wire.OpGoodbye: rdma.RoleWriter,
	wire.OpReserve: rdma.RoleWriter,
	wire.OpWriter:  rdma.RoleWriter,
	wire.OpLoad:    rdma.RoleLoader,
	wire.OpSeal:    rdma.RoleLoader,
	wire.OpAlter:   rdma.RoleLoader,
	wire.OpEmpty:   rdma.RoleLoader,
	wire.OpBackup:  rdma.RoleLoader,

	wire.OpPrepare:  rdma.RoleServer,
	wire.OpDecide:   rdma.RoleServer,
	wire.OpHandOver: rdma.RoleServer,
	wire.OpResolve:  rdma.RoleServer,
	wire.OpValidate: rdma.RoleServer,
	wire.OpCatalog:  rdma.RoleServer,
	wire.OpCopy:     rdma.RoleServer,
	wire.OpShip:     rdma.RoleServer,
	wire.OpPlaces:   rdma.RoleServer,
}

// needs returns the least role for a request.
func needs(op wire.Op) rdma.Role {
	if role, ok := leastRole[op]; ok {
		return role
	}
	return rdma.RoleServer
}

// permissions decides which requests a peer may make, by its role and its tables, and
// answers the others.
type permissions struct {
	answers *answers
	catalog *catalogue

	role, table, session atomic.Uint64 // refused because of them
}

func (ps *permissions) refusals() []rdma.Refusal {
	return []rdma.Refusal{
		{Reason: "request_role", Count: ps.role.Load()},
		{Reason: "request_table", Count: ps.table.Load()},
		{Reason: "request_session", Count: ps.session.Load()},
	}
}

// permit reports whether the peer's role allows a request, and answers it if
// not. permitTable checks the tables of a request. A procedure may use any
// table, sealing ends the load for all tables, and emptying the cluster, a backup or a
// change of the catalogue concerns all, so a peer that is restricted to some tables may
// do none of it.
func (ps *permissions) permit(r *rdma.Request, op wire.Op) bool {
	if least := needs(op); r.From.Role < least {
		ps.role.Add(1)
		ps.answers.forbid(r, fmt.Sprintf("%v needs the role %v, the peer is %v", op, least, r.From))
		return false
	}
	if (op == wire.OpCall || op == wire.OpSeal || op == wire.OpAlter || op == wire.OpEmpty || op == wire.OpBackup) && r.From.Restricted() {
		ps.table.Add(1)
		ps.answers.forbid(r, fmt.Sprintf("%v needs all tables, the peer is %v", op, r.From))
		return false
	}
	return true
}

// permitTable reports whether the peer may use the table of an index, and
// answers the request if not. For a peer that is restricted the index must
// exist: one that is added later might have a table that it may not use.
func (ps *permissions) permitTable(r *rdma.Request, ix int) bool {
	if !r.From.Restricted() {
		return true
	}
	table := fmt.Sprintf("of index %d", ix)
	if indexes := ps.catalog.Load().Indexes; ix < len(indexes) {
		table = indexes[ix].Table.Name()
	}
	if r.From.MayUse(table) {
		return true
	}
	ps.table.Add(1)
	ps.answers.forbid(r, fmt.Sprintf("table %q is not for the peer, which is %v", table, r.From))
	return false
}

// permitWrites is permitTable for all writes of a transaction.
func (ps *permissions) permitWrites(r *rdma.Request, c *wire.Commit) bool {
	if !r.From.Restricted() {
		return true
	}
	for i := range c.Parts {
		for j := range c.Parts[i].Writes {
			if !ps.permitTable(r, int(c.Parts[i].Writes[j].Index)) {
				return false
			}
		}
	}
	return true
}

// permitTurn is permitTable for the rows of a turn. A peer that is restricted
// to some tables never has a partition for itself.
func (ps *permissions) permitTurn(r *rdma.Request, t *wire.Turn) bool {
	if !r.From.Restricted() {
		return true
	}
	t.Whole = false
	for _, name := range t.Rows {
		if !ps.permitTable(r, name.Index()) {
			return false
		}
	}
	return true
}
