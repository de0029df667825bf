package cluster

import (
	"context"

	"drtmx/internal/datadir"
	"drtmx/internal/hosting"
	"drtmx/internal/member"
	"drtmx/server"
)

// A durable server has the place that its data directory claims: see member.Claim. A
// claim that contradicts the store is refused before anything is changed, in the
// directory or in the store.

// inspect reads the directory, and refuses one whose claim does not hold. It changes
// nothing.
func (p *place) inspect(ctx context.Context) error {
	claim := member.Claim{}
	if p.o.DataDir != "" {
		id, at, err := datadir.Inspect(p.o.fs(), p.config.Dir, datadir.Identity{
			Server: p.o.Index, Servers: p.o.Servers, Partitions: p.o.Partitions,
		})
		if err != nil {
			return err
		}
		claim = claimOf(at)
		if claim.New = id == nil; !claim.New {
			p.self.Incarnation = member.Incarnation(id.Incarnation)
		} else if p.self.Incarnation == 0 {
			p.self.Incarnation = member.NewIncarnation()
		}
	}
	state, err := p.o.Store.State(ctx)
	if err != nil {
		return err
	}
	return claim.Check(state.Map, p.o.Servers, p.o.Partitions, p.self)
}

// open opens the directory, which only the holder of the lease does, and returns
// its claim.
func (p *place) open(ctx context.Context) (claim member.Claim, err error) {
	if err := p.inspect(ctx); err != nil || p.o.DataDir == "" { // the former holder of the lease may have been admitted
		return claim, err
	}
	c := p.config.Hosted(hosting.Options{Place: hosting.Place{Incarnation: uint64(p.self.Incarnation)}})
	if p.dir, err = server.OpenDir(c); err != nil {
		return claim, err
	}
	p.self.Incarnation = member.Incarnation(p.dir.Incarnation)
	claim = claimOf(p.dir.Place)
	claim.New = p.dir.New
	if claim.Log, err = server.LogEnd(c, p.dir); err != nil {
		return claim, err
	}
	claim.Record = func(c member.Claim) error {
		return p.dir.SetPlace(datadir.Place{Cluster: uint64(c.Cluster), Admitted: uint64(c.Admitted), Tried: uint64(c.Tried)})
	}
	return claim, nil
}

func claimOf(p datadir.Place) member.Claim {
	return member.Claim{
		Cluster: member.ClusterID(p.Cluster), Admitted: member.Instance(p.Admitted), Tried: member.Instance(p.Tried),
	}
}
