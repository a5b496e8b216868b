"""What BGP's part says in the agent's status, by the names that it has there.

Rule: nothing is imported: what starts before that part needs these names, too.
"""

ENDS = "bgp_ends"  # why sessions ended
UNMET = "bgp_unmet"  # why the node is not ready without BIRD
BIRD_MAKES_ROUTES = "bird_makes_routes"  # programClusterRoutes of BGPConfiguration
NOT_CONFIGURED = "BIRD has not been configured yet"
