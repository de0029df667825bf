//go:build !verbs

package verbs

import (
	"context"
	"fmt"

	"drtmx/rdma"
)

// Built reports whether this binary has the provider: whether it was built
// with the tag verbs.
const Built = false

var errNotBuilt = fmt.Errorf("verbs: built without the verbs tag (go build -tags verbs, with libibverbs and librdmacm): %w", rdma.ErrUnsupported)

// Provider is the provider "verbs". Without the build tag there is none: New
// always fails.
type Provider struct{}

var _ rdma.Provider = (*Provider)(nil)

// New fails with rdma.ErrUnsupported: the binary was built without the tag
// verbs. Options out of range are reported first.
func New(o Options) (*Provider, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	return nil, errNotBuilt
}

// Name returns the provider's name on the command line.
func (*Provider) Name() string { return "verbs" }

// Unordered returns true: a device promises no order within a READ.
func (*Provider) Unordered() bool { return true }

// Listen fails with rdma.ErrUnsupported.
func (*Provider) Listen(string, rdma.ListenOptions) (rdma.Endpoint, error) { return nil, errNotBuilt }

// Dial fails with rdma.ErrUnsupported.
func (*Provider) Dial(context.Context, string) (rdma.Conn, error) { return nil, errNotBuilt }
