package etcd

import "context"

// Changed is one round of Watch.
func (s *Store) Changed(ctx context.Context, after int64) (seen int64, changed bool) {
	return s.changed(ctx, after)
}
