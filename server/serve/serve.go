// Package serve makes a program the server of its own tables and procedures:
//
//	func main() {
//		serve.Main(serve.Program{
//			Name:       "bankd",
//			Catalog:    bank.Catalog(),
//			Procedures: bank.Procedures(),
//		})
//	}
//
// The program then has the commands of drtmx for data servers, with the same
// flags, configuration file, environment variables, log, metrics and profiles:
// serve runs data servers in the foreground, cluster up, status and down run
// them in the background. docs/operations.md describes them. Clients open the
// cluster with [Connect].
//
// The same executable runs as the parent and as the child processes, so a
// program must call Main before it does anything else.
package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"drtmx/internal/cluster"
	"drtmx/internal/command"
	"drtmx/internal/member/etcd"
	"drtmx/tables"
	"drtmx/txn"
)

// Program is what its data servers hold. All programs that serve one cluster
// must have the same.
type Program struct {
	// Name is the program's name in messages, and of its tables in a cluster's
	// description: lower-case letters, digits, - and _.
	Name string
	// Catalog is required.
	Catalog    *tables.Catalog
	Procedures []txn.Procedure
}

var names = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

// Main runs the program with the arguments of the process, and ends the process
// with its exit status. An error goes to standard error, as one line.
func Main(p Program) {
	if err := p.check(); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(2)
	}
	w := cluster.Workload{Name: p.Name, Catalog: p.Catalog, Procedures: p.Procedures}
	os.Exit(command.Serve(w, os.Args[1:], os.Stdout, os.Stderr))
}

func (p *Program) check() error {
	var errs []error
	if !names.MatchString(p.Name) {
		errs = append(errs, fmt.Errorf("Program.Name %q: want lower-case letters, digits, - and _", p.Name))
	}
	if p.Catalog == nil {
		errs = append(errs, errors.New("Program.Catalog is required"))
	}
	return errors.Join(errs...)
}

// Client is a database of a cluster that runs elsewhere.
type Client struct {
	*txn.DB
	cluster *cluster.Cluster
}

// Connect opens the database of a cluster: at drtmx://host:port of any of its
// servers, in the runtime directory of servers on this machine, or at
// drtmx+etcd://host:port/name of the etcd that has its members. Config.Servers and
// Config.Dial are filled in. Data servers that have copies may move from host to host,
// so they are found in one of the last two ways only.
func Connect(ctx context.Context, where string, c txn.Config) (*Client, error) {
	o := cluster.ConnectOptions{Dir: where, Members: etcd.OpenExisting}
	if strings.Contains(where, "://") {
		a, err := cluster.ParseAddress(where)
		if err != nil {
			return nil, err
		}
		o.Dir, o.Address = "", a
	}
	cl, err := cluster.Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	db, err := cl.Open(ctx, func(to *txn.Config) {
		c.Servers, c.Dial, c.AllServers = to.Servers, to.Dial, to.AllServers
		*to = c
	})
	if err != nil {
		return nil, errors.Join(err, cl.Close())
	}
	return &Client{DB: db, cluster: cl}, nil
}

// Lost returns a channel that is closed when a data server is known to be lost.
func (c *Client) Lost() <-chan struct{} { return c.cluster.Lost() }

// Close closes the database.
func (c *Client) Close() error { return errors.Join(c.DB.Close(), c.cluster.Close()) }
